"use strict";
(() => {
  const tip = document.getElementById("tip");
  const sections = [...document.querySelectorAll("section")];
  let zoom = 1;

  const show = (bar) => {
    tip.textContent = bar.dataset.facts;
    tip.hidden = false;
    const box = bar.getBoundingClientRect();
    const left = Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
    const below = box.bottom + 6;
    const fits = below + tip.offsetHeight < innerHeight;
    tip.style.left = left + "px";
    tip.style.top = (fits ? below : Math.max(4, box.top - tip.offsetHeight - 6)) + "px";
  };

  for (const bar of document.querySelectorAll(".bar")) {
    bar.dataset.facts = bar.title;
    bar.removeAttribute("title");
    bar.addEventListener("pointerenter", () => show(bar));
    bar.addEventListener("focus", () => show(bar));
    bar.addEventListener("pointerleave", () => { tip.hidden = true; });
    bar.addEventListener("blur", () => { tip.hidden = true; });
  }

  document.getElementById("step").addEventListener("change", (event) => {
    for (const section of sections) section.hidden = section.dataset.step !== event.target.value;
  });

  const zoomTo = (value) => {
    zoom = Math.max(1, Math.min(64, value));
    for (const lanes of document.querySelectorAll(".lanes")) lanes.style.width = 100 * zoom + "%";
  };
  document.getElementById("in").addEventListener("click", () => zoomTo(2 * zoom));
  document.getElementById("out").addEventListener("click", () => zoomTo(zoom / 2));
  document.documentElement.dataset.ready = "yes";
})();
