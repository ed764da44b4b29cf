"""The trial program of an NNI experiment with empty trials: it imports nothing but NNI."""

import nni


def main() -> None:
    architecture = nni.get_next_parameter()
    # NNI 3.0 may put a trial's parameters on another trial's record, so the result includes the learning rate.
    nni.report_final_result({"default": 0.0, "lr": architecture["optimizer.lr"]})


if __name__ == "__main__":
    main()
