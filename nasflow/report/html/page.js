// Draws every figure in the page's colors, and again when the colors change.
"use strict";
(() => {
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "sendChartToCloud"] };
  const color = (text) =>
    text.replace(/^var\((--\w+)\)$/, (_, name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim());

  // A copy of a figure. In keys about color, the page's CSS variables are replaced by their colors.
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
      await new Promise((next) => setTimeout(next)); // show this plot before drawing the next one
    }
    document.documentElement.dataset.drawn = Math.round(performance.now()); // milliseconds since the page was opened
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
