// Rows by keys, and a filter of rows; without scripts the pages say the same.
"use strict";

const rows = () => [...document.querySelectorAll("tr.row")].filter((row) => !row.hidden);

function step(by) {
  const all = rows();
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  next?.querySelector("a")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("tr.row, section.case")) {
    const said = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => said.includes(word));
  }
}

document.addEventListener("keydown", (event) => {
  const field = document.getElementById("filter");
  if (event.key === "Escape") {
    field.value = "";
    filter("");
    field.blur();
  } else if (event.target === field || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  } else if (event.key === "j" || event.key === "k") {
    step(event.key === "j" ? 1 : -1);
  } else if (event.key === "/") {
    event.preventDefault();
    field.focus();
  } else if (event.key === "o") {
    window.location.href = "index.html";
  }
});
document.getElementById("filter").addEventListener("input", (event) => filter(event.target.value));
