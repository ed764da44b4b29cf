// Draws every figure of the page, in the page's colors, and again when these change.
"use strict";
(() => {
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "sendChartToCloud"] };
  const color = (text) =>
    text.replace(/^var\((--\w+)\)$/, (_, name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim());

  // A copy in which each value of a key about color that names one of the page's is that color.
  function colored(value, key = "") {
    if (typeof value === "string") return /color/i.test(key) ? color(value) : value;
    if (Array.isArray(value)) return /color/i.test(key) ? value.map((item) => colored(item, key)) : value.map((item) => colored(item));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, colored(item, name)]));
  }

  const plots = [...document.querySelectorAll(".plot")].map((place) => ({
    place,
    figure: JSON.parse(document.getElementById(place.dataset.figure).textContent),
  }));
  const draw = ({ place, figure }) => Plotly.react(place, colored(figure.data), colored(figure.layout), options);

  async function drawAll() {
    for (const plot of plots) {
      await draw(plot);
      await new Promise((next) => setTimeout(next)); // what is drawn is shown before the next one
    }
    document.documentElement.dataset.drawn = Math.round(performance.now()); // milliseconds since the page was opened
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
