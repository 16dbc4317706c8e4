// Before it stands `const data = …`, the steps as `report/lanes.py` describes them.
"use strict";
(() => {
  const ROUND = [5, 2.5, 2, 1];
  const MOST_ZOOM = 4096;
  const PX_A_TICK = 140;
  const LEVEL_PX = 22;
  const PARTS_A_PERCENT = 10000;
  const tip = document.getElementById("tip");
  const section = document.querySelector("section");
  const lanes = section.querySelector(".lanes");
  const axis = section.querySelector(".axis"), track = axis.querySelector(".track");
  let zoom = 1;

  const element = (tag, name, text = "") => Object.assign(document.createElement(tag), {className: name, textContent: text});

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

  const drawBar = ([look, name, before, after], left, width, level, time) => {
    const bar = element("span", "bar");
    bar.style = data.looks[look];
    bar.style.left = left / PARTS_A_PERCENT + "%";
    bar.style.width = width / PARTS_A_PERCENT + "%";
    bar.style.top = level * LEVEL_PX + "px";
    bar.tabIndex = 0;
    bar.dataset.facts = before + time + " of the step" + after;
    bar.append(element("i", "", name));
    for (const event of ["pointerenter", "focus"]) bar.addEventListener(event, () => show(bar));
    for (const event of ["pointerleave", "blur"]) bar.addEventListener(event, () => { tip.hidden = true; });
    return bar;
  };

  const drawLane = ([name, ...levels]) => {
    const lane = element("div", "lane"), row = element("div", "track");
    row.style.height = Math.max(1, levels.length) * LEVEL_PX + "px";
    levels.forEach((bars, level) => {
      for (let at = 0, end = 0; at < bars.length; at += 4) {
        const [kind, gap, width, time] = bars.slice(at, at + 4);
        row.append(drawBar(data.kinds[kind], end + gap, width, level, time));
        end += gap + width;
      }
    });
    lane.append(element("b", "", data.lanes[name]), row);
    return lane;
  };

  const drawStep = (number) => {
    const [end, unit, found] = data.steps[number];
    Object.assign(section.dataset, {step: number, end});
    axis.firstChild.textContent = unit;
    lanes.replaceChildren(axis, ...found.map(drawLane));
  };

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

  // The axis of what is in sight; a label that lacks room moves aside, as far as it stays at its tick.
  const drawAxis = () => {
    const end = Number(section.dataset.end);
    if (!end || !track.clientWidth) return;
    const from = section.scrollLeft, to = from + section.clientWidth - track.offsetLeft;
    const value = end / track.clientWidth;
    const found = ticks(from * value, Math.min(to, track.clientWidth) * value, Math.max(3, (to - from) / PX_A_TICK));
    track.replaceChildren(...found.map((tick) => {
      const mark = element("span", "");
      mark.style.left = 100 * tick / end + "%";
      mark.append(element("i", "", Number(tick.toPrecision(10))));
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
    const names = track.offsetLeft;
    lanes.style.width = zoom === 1 ? "" : names + zoom * (section.clientWidth - names) + "px";
    lanes.style.setProperty("--names", names + "px");
    drawAxis();
  };

  const zoomTo = (wanted) => {
    const value = Math.max(1, Math.min(MOST_ZOOM, wanted));
    const half = (section.clientWidth - track.offsetLeft) / 2;
    const left = (section.scrollLeft + half) * value / zoom - half;
    zoom = value;
    draw();
    section.scrollLeft = left;
    drawAxis();
  };

  section.addEventListener("scroll", drawAxis);
  addEventListener("resize", draw);
  document.getElementById("step").addEventListener("change", (event) => {
    drawStep(event.target.value);
    draw();
  });
  document.getElementById("in").addEventListener("click", () => zoomTo(2 * zoom));
  document.getElementById("out").addEventListener("click", () => zoomTo(zoom / 2));
  drawStep(section.dataset.step);
  draw();
  document.documentElement.dataset.ready = "yes";
})();
