"use strict";
(() => {
  const ROUND = [5, 2.5, 2, 1];
  const MOST_ZOOM = 4096;
  const PX_A_TICK = 140;
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

  // The multiples from low to high of the largest round number that has enough of them there: report/ticks.py.
  const ticks = (low, high, least) => {
    if (!(low < high)) return [];  // the names of lanes fill the page
    for (let power = Math.floor(Math.log10(high - low)); ; power--) {
      for (const digits of ROUND) {
        const size = Number(`${digits}e${power}`);
        const first = Math.ceil(low / size - 1e-9), count = Math.floor(high / size + 1e-9) - first + 1;
        if (count >= least) return Array.from({length: count}, (_, index) => (first + index) * size);
      }
    }
  };

  // The axis of what a section shows; a label that lacks room moves aside, as far as it stays at its tick.
  const drawAxis = (section) => {
    const track = section.querySelector(".axis .track"), end = Number(section.dataset.end);
    if (!end || !track.clientWidth) return;
    const from = section.scrollLeft, to = from + section.clientWidth - track.offsetLeft;
    const value = end / track.clientWidth;
    const found = ticks(from * value, Math.min(to, track.clientWidth) * value, Math.max(3, (to - from) / PX_A_TICK));
    track.replaceChildren(...found.map((tick) => {
      const mark = document.createElement("span"), label = document.createElement("i");
      mark.style.left = 100 * tick / end + "%";
      label.textContent = Number(tick.toPrecision(10));
      mark.append(label);
      return mark;
    }));
    let free = from + 1;
    for (const {offsetLeft: at, firstChild: label} of [...track.children]) {
      const width = label.offsetWidth + 1, left = Math.max(free, Math.min(at - width / 2, to - width - 1));
      label.style.transform = `translateX(${left - at}px)`;
      label.hidden = left > at + 1 || left + width > to;
      if (!label.hidden) free = left + width + 3;
    }
  };

  const draw = () => {
    for (const section of sections) {
      const lanes = section.querySelector(".lanes"), names = section.querySelector(".axis .track").offsetLeft;
      lanes.style.width = zoom === 1 ? "" : names + zoom * (section.clientWidth - names) + "px";
      lanes.style.setProperty("--names", names + "px");
      drawAxis(section);
    }
  };

  const zoomTo = (wanted) => {
    const value = Math.max(1, Math.min(MOST_ZOOM, wanted));
    const middles = sections.map((section) => {
      const half = (section.clientWidth - section.querySelector(".axis .track").offsetLeft) / 2;
      return (section.scrollLeft + half) * value / zoom - half;
    });
    zoom = value;
    draw();
    sections.forEach((section, number) => { section.scrollLeft = middles[number]; drawAxis(section); });
  };

  for (const section of sections) section.addEventListener("scroll", () => drawAxis(section));
  addEventListener("resize", draw);
  document.getElementById("step").addEventListener("change", (event) => {
    for (const section of sections) section.hidden = section.dataset.step !== event.target.value;
    draw();
  });
  document.getElementById("in").addEventListener("click", () => zoomTo(2 * zoom));
  document.getElementById("out").addEventListener("click", () => zoomTo(zoom / 2));
  draw();
  document.documentElement.dataset.ready = "yes";
})();
