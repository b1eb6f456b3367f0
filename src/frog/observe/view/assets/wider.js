"use strict";
// What is wider than its place says so, and the keyboard can scroll it.
(() => {
  function mark() {
    for (const box of document.querySelectorAll(".scroll")) {
      const isWider = box.scrollWidth > box.clientWidth + 1;
      box.classList.toggle("wider", isWider);
      box.tabIndex = isWider ? 0 : -1;
    }
  }
  mark();
  addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true);
})();
