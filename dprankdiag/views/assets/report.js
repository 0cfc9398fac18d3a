"use strict";
(() => {
  const page = JSON.parse(document.getElementById("figures").textContent);
  const paint = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // What of a figure follows the page's colours, as plotly's dotted keys.
  function theme(layout) {
    const ink = paint("--ink"), line = paint("--line");
    const keys = {
      "font.color": ink,
      "font.family": getComputedStyle(document.body).fontFamily,
      "hoverlabel.bgcolor": paint("--card"),
      "hoverlabel.bordercolor": line,
      "hoverlabel.font.color": ink,
      "modebar.color": paint("--faint"),
      "modebar.activecolor": ink,
      "modebar.bgcolor": "rgba(0,0,0,0)",
    };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) {
        keys[name + ".gridcolor"] = line;
        keys[name + ".zerolinecolor"] = line;
        keys[name + ".linecolor"] = line;
        keys[name + ".tickcolor"] = line;
      }
    }
    return keys;
  }

  const drawn = page.figures.map((figure) => {
    const place = document.getElementById(figure.id);
    return Plotly.newPlot(place, figure.data, figure.layout, page.config)
      .then(() => Plotly.relayout(place, theme(figure.layout)));
  });
  Promise.all(drawn).then(() => document.documentElement.setAttribute("data-figures", "drawn"));

  function repaint() {
    for (const figure of page.figures) Plotly.relayout(figure.id, theme(figure.layout));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  matchMedia("print").addEventListener("change", repaint);
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });

  function select(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        select(code);
        button.textContent = document.execCommand("copy") ? "copied" : "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
  }
})();
