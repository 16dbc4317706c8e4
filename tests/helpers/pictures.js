// What a test asks of a page: which texts are cut or overlap, which have little contrast, where the ticks are.
"use strict";

const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});

const known = new Map();

/** A CSS colour, whatever its notation, over another as [red, green, blue], 0 to 255. */
const painted = (color, under) => {
  const key = color + under;
  if (!known.has(key)) known.set(key, paint(color, under));
  return known.get(key);
};

const paint = (color, under) => {
  canvas.fillStyle = `rgb(${under.join(",")})`;
  canvas.fillRect(0, 0, 1, 1);
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};

/** What lies behind an element: the backgrounds of its ancestors and its own, over the browser's white or black. */
const behind = (element) => {
  const canvasColor = getComputedStyle(document.documentElement).colorScheme.includes("dark") ? 18 : 255;
  const ancestors = [];
  for (let node = element; node; node = node.parentElement) ancestors.unshift(node);
  return ancestors.reduce((under, node) => painted(getComputedStyle(node).backgroundColor, under), Array(3).fill(canvasColor));
};

const luminance = (rgb) => {
  const linear = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};

const contrast = (one, other) => {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
};

const visible = (element) => element.checkVisibility() && !["SCRIPT", "STYLE", "OPTION"].includes(element.tagName);

/** Visible elements with a text of their own, and the box of that text. */
const texts = () => [...document.body.querySelectorAll("*")].filter(visible).flatMap((element) => {
  const nodes = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  return nodes.map((node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return {element, text: node.data.trim(), box: range.getBoundingClientRect()};
  });
});

const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;

/** The part of a text that is drawn and the part that is not: a bar's name is whole in its bar or not drawn. */
const cutTexts = () => texts().filter(({element, box}) => {
  const bar = element.closest(".bar"), clip = (bar ?? element.closest("section") ?? document.documentElement).getBoundingClientRect();
  if ((bar && !overlap(box, clip)) || element.closest(".wide")) return false; // a wide table scrolls
  const names = element.closest(".axis .track")?.getBoundingClientRect();
  const left = names ? Math.max(clip.left, element.closest(".axis").firstChild.getBoundingClientRect().right) : clip.left;
  const right = bar ? clip.right : Math.min(clip.right, document.documentElement.clientWidth);
  const inCell = element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX !== "visible";
  return inCell || box.left < left - 0.6 || box.right > right + 0.6;
}).map(({text}) => text);

const overlappingTexts = (selector) => {
  const found = texts().filter(({element}) => element.closest(selector));
  return found.flatMap((one, i) => found.slice(i + 1).filter((other) => overlap(one.box, other.box)).map((other) => [one.text, other.text]));
};

/** Texts below 4.5:1, and bars and colours of a legend below 3:1. */
const illegible = () => [
  ...texts().map(({element, text}) => [text, contrast(painted(getComputedStyle(element).color, behind(element)), behind(element)), 4.5]),
  ...[...document.querySelectorAll(".bar, .legend i, .share i")].filter(visible).map((mark) =>
    [mark.className + mark.textContent, contrast(behind(mark), behind(mark.parentElement)), 3]),
].filter(([, found, least]) => found < least);

const shownTicks = () => texts().filter(({element}) => element.closest(".axis .track")).map(({text}) => Number(text));

const laneNames = () => [...document.querySelectorAll("section:not([hidden]) .lane:not(.axis) > b")].map((name) => name.textContent);

/** The contrast of a colour with what lies behind an element. */
const contrastWith = (color, element) => contrast(painted(color, behind(element)), behind(element));

window.pictures = {contrastWith, cutTexts, overlappingTexts, illegible, shownTicks, laneNames};
