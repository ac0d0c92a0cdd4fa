// Keys of the dashboard: "/" goes to the search field, "[" and "]" to the page before and the next one.
"use strict";
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-search]");
    if (field) { field.focus(); event.preventDefault(); }
  }
  const link = { "[": "prev", "]": "next" }[event.key];
  if (link) document.querySelector(`a[rel=${link}]`)?.click();
});
