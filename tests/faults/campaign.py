"""Searches under faults, one after the other, until so many faults have struck; and the report."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.faults.judge import Outcome, Verdict, judge, outcome
from tests.faults.kinds import KINDS, Fault, Kind, deal
from tests.faults.package import Package
from tests.faults.scene import Missed, Scene
from tests.faults.search import CONFIGS, POSTGRESQL, STALLED_THERE, HungSearch, TroubledSearch
from tests.faults.service_stage import ServiceStage
from tests.faults.services.all import SERVICES, kinds_on
from tests.faults.small_disks import small_disks
from tests.faults.stage import Stage, staged
from tests.faults.storage import STORE
from tests.postgresql import new_schema


@dataclass
class Report:
    """What a campaign has seen.

    Attributes:
        kills: faults that struck, by kind.
        places: where those of a kind hit: the config, and the share of the search's epochs that were trained.
        verdicts: of each search, with the faults that struck it.
        lacking: why kinds could not be tried here.
        kinds: all there are.
        seconds: it took.
    """

    kills: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))
    verdicts: list[tuple[list[Fault], Verdict]] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=lambda: KINDS)
    seconds: float = 0.0

    @property
    def bad(self) -> list[tuple[list[Fault], Verdict]]:
        """The searches in which something was wrong."""
        return [(faults, verdict) for faults, verdict in self.verdicts if verdict]


class Campaign:
    """Injects faults into searches of its own.

    Args:
        folder: for all files; it has to be there.
        say: told every step in a line.
        brief: pauses are short, and there is one config only, but for faults that need another.
        only: the kinds that are dealt; all by default.
        service: on which jobs run; by default on this machine.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        brief: bool = False,
        only: list[str] | None = None,
        service: str | None = None,
    ):
        self._folder = folder
        self._service_name = service
        self._service: ServiceStage | None = None
        self._all = kinds_on(service)
        self._say = say
        self._brief = brief
        chosen = {name: kind for name, kind in self._all.items() if not only or name in only}
        lacking = {name: reason for name, kind in chosen.items() if (reason := kind.lacking())}
        self._kinds = {name: kind for name, kind in chosen.items() if name not in lacking}
        self._stage: Stage | None = None
        self._references: dict[str, Outcome] = {}
        self.report = Report(lacking=lacking, kinds=self._all)

    def run(self, kills: int, seed: int, each: int = 8) -> Report:
        """Strike with so many faults, at most `each` a search. The seed says which, and when."""
        seeds = count(1000 * seed)
        names = (name for round in count() for name in deal(1000 * seed + round, self._kinds))
        return self.strike((Fault(name, next(seeds)) for name in names), kills, each)

    def strike(self, faults: Iterator[Fault], kills: int, each: int = 8) -> Report:
        """The same with given faults. One that comes too late for its search comes again in the next, once."""
        begin = time.monotonic()
        with staged(self._folder) as self._stage, self._started(self._stage) as self._service:
            names = [name for name in CONFIGS if name != POSTGRESQL][: 1 if self._brief or self._service else None]
            late: list[Fault] = []
            for number in count():
                todo = [*late, *islice(faults, max(0, min(each, kills - self.report.kills.total()) - len(late)))]
                if not todo:
                    break
                needs = {self._all[fault.kind].needs for fault in todo}
                config = POSTGRESQL if POSTGRESQL in needs else names[number % len(names)]
                struck = self._disturb(number, config, todo, needs)
                late = [fault for fault in todo if fault not in struck and fault not in late]
        self.report.seconds = time.monotonic() - begin
        return self.report

    def _started(self, stage: Stage) -> AbstractContextManager[ServiceStage | None]:
        """Start the servers of the service, if jobs run on one."""
        name = self._service_name
        return nullcontext() if name is None else SERVICES[name](self._folder / "service", stage)

    def _reference(self, name: str) -> Outcome:
        """What the search leaves when nobody disturbs it."""
        if name not in self._references:
            search = self._search(f"undisturbed-{name}", name)
            begin = time.monotonic()
            try:
                search.tend_to_the_end()
                found = outcome(search)
                wrong = judge(found, found)
                if search.restarts or wrong or found.fused < 2:
                    raise RuntimeError(f"the undisturbed search is no good: {search.restarts}, {wrong}, {found.fused}")
            finally:
                search.close()
            statuses = Counter(trial.status.value for trial in found.trials.values())
            self._say(
                f"undisturbed search '{name}': {time.monotonic() - begin:.0f} s, {found.told.total()} epochs, "
                f"{dict(statuses)}, up to {found.fused} members fused"
            )
            self._references[name] = found
        return self._references[name]

    def _search(self, folder: str, config: str, more: Mapping[str, str] = MappingProxyType({})) -> TroubledSearch:
        assert self._stage is not None
        stage = self._stage
        store = new_schema(stage.postgresql.url) if config == POSTGRESQL and stage.postgresql else None
        environment = {**stage.environment, **more}
        values = CONFIGS[config]
        if self._service is not None:
            environment |= self._service.environment
            values = {**values, "training_service": dict(self._service.section), "limits": {"stalled": STALLED_THERE}}
        return TroubledSearch(self._folder / folder, stage.server, values, environment, store)

    def _disturb(self, number: int, config: str, faults: list[Fault], needs: set[str]) -> list[Fault]:
        assert self._stage is not None
        stage, reference = self._stage, self._reference(config)
        folder = self._folder / f"search-{number}"
        package = Package(self._folder / f"package-{number}") if "package" in needs else None
        disks, power = "disks" in needs, "power" in needs
        struck: list[Fault] = []
        begin = time.monotonic()
        with small_disks(folder, self._folder / "cache") if disks else nullcontext():
            search = self._search(folder.name, config, package.environment if package else {})
            postgresql = stage.postgresql if config == POSTGRESQL else None
            stages = (stage.clock, disks, stage.broken_disk, power, stage.proxy, postgresql, package)
            scene = Scene(search, self._brief, *stages, service=self._service)
            if stage.broken_disk:
                stage.broken_disk.remember([search.root.parent, search.folder / STORE] if power else [])
            try:
                for fault in sorted(faults, key=lambda fault: fault.instant):
                    self._strike(scene, fault, config, reference.told.total(), struck)
                search.tend_to_the_end()
                self._tell_restarts(scene, struck)
                broken = []
            except HungSearch as error:
                broken = [f"the search hangs: {error}"]
            if stage.clock:
                stage.clock.set(0)
            left = [] if broken else [f"{p.pid}: {' '.join(p.cmdline()[:5])}" for p in search.left_over()]
            left += [] if broken or self._service is None else self._service.left()
            search.close()
            verdict = judge(outcome(search), reference, scene.excused)
            verdict.left = left
            verdict.broken = [*broken, *(text for promise in scene.promises if (text := promise()))]
        self.report.verdicts.append((struck, verdict))
        self._say(
            f"search {number} ({config}): {len(struck)} faults, {len(search.restarts)} restarts, "
            f"{time.monotonic() - begin:.0f} s, {verdict if verdict else 'nothing lost, nothing repeated'}"
        )
        return struck

    def _strike(self, scene: Scene, fault: Fault, config: str, epochs: int, struck: list[Fault]) -> None:
        search = scene.search
        share, delay = fault.instant
        search.tend_until(round(share * epochs))
        search.tend_for(delay)
        self._tell_restarts(scene, struck)
        name = f"{fault.kind} --seed {fault.seed}"
        if search.ended:
            self._say(f"  the search had ended before {name}")
            return
        trained = search.trained()
        at = f"{trained} of {epochs} epochs"
        try:
            done = self._all[fault.kind].strike(scene, fault.rng)
        except (Missed, psutil.NoSuchProcess) as why:
            self._say(f"  {name} missed at {at}: {why}")
            return
        struck.append(fault)
        self.report.kills[fault.kind] += 1
        self.report.places[fault.kind].append((config, min(1.0, trained / epochs)))
        self._say(f"  {self.report.kills.total()}. {name} at {at} + {delay:.2f} s: {done}")

    def _tell_restarts(self, scene: Scene, struck: list[Fault]) -> None:
        """Put down to the last fault what has been started again since it struck."""
        for restart in scene.search.restarts[scene.restarts :]:
            kind = struck[-1].kind if struck else "nothing"
            if restart.code >= 0:
                self._say(f"  started again after {kind}: it ended with {restart.code}: {restart.said}")
        scene.restarts = len(scene.search.restarts)
