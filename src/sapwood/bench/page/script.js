"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // ------------------------------------------------------------------ light and dark
  const root = document.documentElement;
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.querySelector(".theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; });

  // ------------------------------------------------------------------ one setting at a time
  const tabs = all(".tabs button");
  const choose = (tab) => tabs.forEach((other) => {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
  });
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { const next = tabs[(place + step + tabs.length) % tabs.length]; choose(next); next.focus(); }
    });
  });

  // ------------------------------------------------------------------ tables that sort
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    const given = cell.dataset.value ?? cell.textContent.trim();
    return given === "" || Number.isNaN(Number(given)) ? given : Number(given);
  };
  const compare = (one, other, falling) => {
    if (one === "" || other === "") return (one === "") - (other === "");  // what is missing comes last
    const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
    return falling ? -order : order;
  };
  all("table.sorts").forEach((table) => all("thead th", table).forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : column > 0;
      all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => compare(value(a, column), value(b, column), falling));
      body.append(...rows);
    });
  }));

  // ------------------------------------------------------------------ one recipe in all charts
  let held = null;
  const light = (who) => {
    document.body.classList.toggle("lit", who !== null);
    all("[data-who]").forEach((item) => item.classList.toggle("chosen", item.dataset.who === who));
  };
  all(".legend button").forEach((button) => {
    const who = button.dataset.who;
    button.addEventListener("mouseenter", () => light(who));
    button.addEventListener("mouseleave", () => light(held));
    button.addEventListener("click", () => {
      held = held === who ? null : who;
      all(".legend button").forEach((other) => other.setAttribute("aria-pressed", other.dataset.who === held));
      light(held);
    });
  });
  all(".mark").forEach((item) => {
    item.addEventListener("mouseenter", () => light(item.dataset.who));
    item.addEventListener("mouseleave", () => light(held));
  });
})();
