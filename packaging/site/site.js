// The documentation in a browser: light and dark, the list of pages on small screens, and the search. Without it, or where
// scripts are off, all pages read the same. What is found is put into the page as text alone.
(function () {
  "use strict";

  const up = document.currentScript.dataset.up;
  const root = document.documentElement;
  const MOST = 12; // results shown

  function remember(name, value) { // a browser may refuse
    try {
      if (value === undefined) return localStorage.getItem(name);
      localStorage.setItem(name, value);
    } catch (error) { /* then it is not remembered */ }
    return null;
  }

  // ---- light and dark: as the system has it, unless chosen

  const chosen = remember("esper-theme");
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function startTheme(button) {
    const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember("esper-theme", root.dataset.theme);
      show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
    button.hidden = false;
  }

  // ---- search: every word must begin a word of the section; headings count more than text

  let sections = null; // {address, title, heading, text, and the same in small letters}

  function load(then) {
    if (sections) return then();
    const script = document.createElement("script");
    script.src = up + "search.js";
    script.onload = () => {
      sections = window.esperSearch.map(([address, title, heading, text]) =>
        ({ address, title, heading, text, lowTitle: title.toLowerCase(), lowHeading: heading.toLowerCase(), low: text.toLowerCase() }));
      then();
    };
    document.head.append(script);
  }

  function placeOf(word, text) { // where a word begins with it; -1: nowhere
    let at = text.indexOf(word);
    while (at > 0 && /[\p{L}\p{N}]/u.test(text[at - 1]) && /[\p{L}\p{N}]/u.test(word[0])) at = text.indexOf(word, at + 1);
    return at;
  }

  function score(section, words) {
    let sum = 0;
    for (const word of words) {
      const inHeading = placeOf(word, section.lowHeading) >= 0, inTitle = placeOf(word, section.lowTitle) >= 0;
      const inText = placeOf(word, section.low) >= 0;
      if (!inHeading && !inTitle && !inText) return 0;
      sum += (inHeading ? 8 : 0) + (inTitle ? 4 : 0) + (inText ? 1 : 0);
    }
    return sum;
  }

  function excerpt(section, words) {
    const at = Math.max(0, placeOf(words.find((word) => placeOf(word, section.low) >= 0) || "", section.low) - 50);
    const begin = at === 0 ? 0 : section.text.indexOf(" ", at) + 1;
    return section.text.slice(begin, begin + 160);
  }

  // Text with the words found in it marked, as nodes.
  function marked(text, words) {
    const low = text.toLowerCase();
    const out = document.createElement("span");
    let at = 0;
    while (low.length === text.length && at < text.length) {
      const next = words.map((word) => [placeOf(word, low.slice(at)), word.length]).filter(([place]) => place >= 0)
        .sort((a, b) => a[0] - b[0] || b[1] - a[1])[0];
      if (!next) break;
      const mark = document.createElement("mark");
      mark.textContent = text.slice(at + next[0], at + next[0] + next[1]);
      out.append(text.slice(at, at + next[0]), mark);
      at += next[0] + next[1];
    }
    out.append(text.slice(at));
    return out;
  }

  function startSearch(box) {
    const input = box.querySelector("input"), list = box.querySelector("#found");
    let selected = -1;

    function select(number) {
      const links = list.querySelectorAll("a");
      if (links.length === 0) return;
      selected = (number + links.length) % links.length;
      links.forEach((link, i) => link.setAttribute("aria-selected", String(i === selected)));
      links[selected].scrollIntoView({ block: "nearest" });
      input.setAttribute("aria-activedescendant", links[selected].id);
    }

    function close() {
      list.hidden = true;
      selected = -1;
      input.removeAttribute("aria-activedescendant");
    }

    function show() {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length === 0 || !sections) return close();
      const found = sections.map((section) => [score(section, words), section]).filter(([value]) => value > 0)
        .sort((a, b) => b[0] - a[0]).slice(0, MOST);
      list.replaceChildren(...found.map(([, section], i) => {
        const link = document.createElement("a"), name = document.createElement("b");
        link.href = up + section.address;
        link.id = "found-" + i;
        link.setAttribute("role", "option");
        name.textContent = section.heading && section.heading !== section.title ? section.title + " \u203a " + section.heading : section.title;
        link.append(name, marked(excerpt(section, words), words));
        link.addEventListener("click", close);
        return link;
      }));
      if (found.length === 0) {
        const nothing = document.createElement("p");
        nothing.textContent = "Nothing has all of these words.";
        list.replaceChildren(nothing);
      }
      list.hidden = false;
      select(0);
    }

    input.addEventListener("focus", () => load(show));
    input.addEventListener("input", () => load(show));
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") select(selected + 1);
      else if (event.key === "ArrowUp") select(selected - 1);
      else if (event.key === "Enter" && selected >= 0 && !list.hidden) list.querySelectorAll("a")[selected].click();
      else if (event.key === "Escape") { close(); input.blur(); }
      else return;
      event.preventDefault();
    });
    document.addEventListener("keydown", (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      input.focus();
    });
    document.addEventListener("click", (event) => { if (!box.contains(event.target)) close(); });
    box.hidden = false;
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (matchMedia("(max-width: 820px)").matches) document.querySelector("nav.pages details").open = false;
    startTheme(document.querySelector("button.theme"));
    startSearch(document.querySelector(".search"));
  });
})();
