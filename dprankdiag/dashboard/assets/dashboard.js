"use strict";
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  dprankdiag: {
    // A beat is passed on only while somebody looks, and once the one before is answered, or not any more.
    beat: (count, sent, answered) => {
      const waits = sent !== answered && count - sent < 10;
      return document.hidden || waits ? window.dash_clientside.no_update : (count || 0);
    },
  },
});

(() => {
  function make(name, text, attributes) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
    return element;
  }

  // Tables come as data: hundreds of rows are drawn at once and again at each tick.
  function drawTable(place) {
    const told = place.getAttribute("data-table");
    if (place.drawnTable === told) return;
    place.drawnTable = told;
    const table = JSON.parse(told);
    const kinds = table.columns.map((column) => column.number ? { class: "number" } : {});
    const head = make("tr");
    table.columns.forEach((column, index) => {
      const attributes = { scope: "col", ...kinds[index] };
      if (column.title) attributes.title = column.title;
      head.append(make("th", column.text, attributes));
    });
    const body = make("tbody");
    for (const row of table.rows) {
      const line = make("tr");
      row.forEach((cell, index) => {
        // A cell is a text, or a text and what hovering over it shows.
        const [text, title] = Array.isArray(cell) ? cell : [cell];
        line.append(make("td", text, title ? { title, ...kinds[index] } : kinds[index]));
      });
      body.append(line);
    }
    const thead = make("thead");
    thead.append(head);
    const drawn = make("table");
    drawn.append(thead, body);
    const scrolled = place.scrollTop;
    place.replaceChildren(drawn);
    place.scrollTop = scrolled;
  }

  // What a reader zoomed to outlasts new numbers; a double click gives the whole again. plotly's own way (uirevision)
  // fails here, because Dash hands back the layout with the ranges that plotly wrote into it.
  function keepZoom(graph) {
    if (graph.keepsZoom || !graph.on) return;
    graph.keepsZoom = true;
    let kept = {}, restoring = false, where = location.search;
    graph.on("plotly_relayout", (change) => {
      if (restoring) return;
      where = location.search;
      for (const [key, value] of Object.entries(change)) {
        if (/^[xy]axis\d*\.autorange$/.test(key)) kept = {};
        else if (/^[xy]axis\d*\.range/.test(key)) kept[key] = value;
      }
    });
    graph.on("plotly_react", () => {
      if (where !== location.search) kept = {};
      if (!Object.keys(kept).length) return;
      restoring = true;
      Plotly.relayout(graph, { ...kept }).finally(() => { restoring = false; });
    });
  }

  // A click on a meeting leads down to its kernels.
  function followMeeting(graph) {
    if (graph.followsMeeting || !graph.on || !graph.closest("[id*='\"meetings-']")) return;
    graph.followsMeeting = true;
    graph.on("plotly_click", () => document.getElementById("kernels")?.scrollIntoView());
  }

  // A link to what stands in the same place does not scroll the page to its top, and keeps the focus when drawn anew.
  let followed = "";
  function keepFocus() {
    if (!followed || document.activeElement !== document.body) return;
    const links = [...document.querySelectorAll("a.stay")];
    links.find((link) => link.textContent === followed)?.focus({ preventScroll: true });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.stay");
    followed = link ? link.textContent : "";
    if (!link) return;
    const place = window.scrollY;
    requestAnimationFrame(() => window.scrollTo(0, place));
  }, true);

  function refresh() {
    for (const graph of document.querySelectorAll(".js-plotly-plot")) {
      keepZoom(graph);
      followMeeting(graph);
    }
    for (const place of document.querySelectorAll("[data-table]")) drawTable(place);
    keepFocus();
    const heading = document.querySelector("#page h1");
    const title = heading ? heading.textContent + " · dprankdiag" : "dprankdiag";
    if (document.title !== title) document.title = title;
    const url = location.pathname;
    for (const link of document.querySelectorAll("#nav a")) {
      if (link.pathname === url) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
  new MutationObserver(refresh).observe(document, {
    subtree: true, childList: true, attributes: true, attributeFilter: ["data-table"],
  });

  // Numbers that stopped coming are marked, also when the server itself is gone; by this clock alone, since the
  // server's may differ. In a hidden tab none are asked for.
  let newest = "", cameMs = Date.now();
  document.addEventListener("visibilitychange", () => { cameMs = Date.now(); });
  setInterval(() => {
    const moment = document.getElementById("moment");
    if (!moment) return;
    if (moment.dataset.atMs !== newest) {
      newest = moment.dataset.atMs;
      cameMs = Date.now();
    }
    const late = Date.now() - cameMs > Number(document.getElementById("source").dataset.lateMs);
    moment.classList.toggle("late", late);
    moment.title = late ? "nothing new has come since" : "moment of the last numbers, UTC";
  }, 1000);

  function select(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const code = button.previousElementSibling;
    let done = "copied";
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      select(code);
      done = document.execCommand("copy") ? "copied" : "selected";
    }
    button.dataset.done = done;
    setTimeout(() => { delete button.dataset.done; }, 2000);
  });
})();
