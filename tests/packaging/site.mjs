// The site in a browser, as somebody reads it: on a phone, in the dark, with keys alone, with scripts off; and a site of texts
// that mean ill. Folders come in SITE and EVIL.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { openBrowser } from "../../web/browser.mjs";

const browser = await openBrowser();
const address = (folder, name) => pathToFileURL(`${folder}/${name}`).href;
const pages = readdirSync(process.env.SITE).filter((name) => name.endsWith(".html"));
let n = 0;
let failed = 0;

/** A fresh page at the front; what a browser complains about, and every dialog, fails the test. */
async function test(what, options, body, folder = process.env.SITE) {
  const context = await browser.newContext({ viewport: { width: 1300, height: 900 }, ...options });
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (message) => { if (message.type() === "error") complaints.push(message.text()); });
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("dialog", (dialog) => { complaints.push("a dialog: " + dialog.message()); dialog.dismiss(); });
  page.setDefaultTimeout(20000);
  try {
    await page.goto(address(folder, "index.html"));
    await body(page);
    assert.deepEqual(complaints, []);
    console.log(`ok: ${what}`);
  } catch (error) {
    failed++;
    console.log(`FAILED: ${what}\n    ${String(error.message).replaceAll("\n", "\n    ")}`);
  }
  n++;
  await context.close();
}

/** What sticks out to the right of the window, but for what scrolls by itself. */
const cutOff = (page) => page.evaluate(() => {
  const wide = document.documentElement.scrollWidth > innerWidth ? ["the page: " + document.documentElement.scrollWidth] : [];
  for (const element of document.querySelectorAll("body *"))
    if (!element.closest("pre, .scroll, .skip, #found") && element.getBoundingClientRect().right > innerWidth + 0.5)
      wide.push(element.tagName + " " + element.textContent.slice(0, 40));
  if (document.querySelector(".search").getBoundingClientRect().left <
      document.querySelector(".brand").getBoundingClientRect().right) wide.push("the search lies on the name");
  return wide;
});

/** The least contrast of text on its page, by the formula of WCAG 2. */
const leastContrast = (page) => page.evaluate(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\)$/.test(colour)) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  let least = 99;
  for (const element of document.querySelectorAll("main, main *, header *, nav *")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || element.matches(".anchor, .skip")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
});

for (const width of [420, 320])
  await test(`nothing is cut off at ${width} pixels, on ${pages.length} pages`, { viewport: { width, height: 900 } }, async (page) => {
    for (const name of pages) {
      await page.goto(address(process.env.SITE, name));
      assert.deepEqual(await cutOff(page), [], name);
    }
  });
for (const colorScheme of ["light", "dark"])
  await test(`text can be read: ${colorScheme}`, { colorScheme }, async (page) => {
    for (const name of ["index.html", "guard.html", "store.html"]) {
      await page.goto(address(process.env.SITE, name));
      const least = await leastContrast(page);
      assert.ok(least >= 4.5, `${name}: contrast ${least.toFixed(2)}`);
    }
  });
await test("all pictures are shown", {}, async (page) => {
  for (const name of pages) {
    await page.goto(address(process.env.SITE, name));
    const broken = await page.evaluate(async () => {
      for (const image of document.images) image.loading = "eager";
      await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
      return [...document.images].filter((image) => image.naturalWidth === 0).map((image) => image.src);
    });
    assert.deepEqual(broken, [], name);
  }
});
await test("search with keys alone", {}, async (page) => {
  await page.keyboard.press("/");
  await page.keyboard.type("governor ladder");
  await page.waitForSelector("#found a[aria-selected=true] mark");
  assert.ok(await page.locator("#found a").count() >= 2);
  await page.keyboard.press("ArrowDown");
  const chosen = await page.locator("#found a[aria-selected=true]").getAttribute("href");
  await page.keyboard.press("Enter");
  await page.waitForURL((url) => url.href.endsWith(chosen));
  await page.keyboard.press("/");
  await page.keyboard.type("xyzzyqu");
  await page.waitForSelector("#found p");
  await page.keyboard.press("Escape");
  assert.ok(await page.locator("#found").isHidden());
});
await test("search finds a heading first", {}, async (page) => {
  await page.locator("input").fill("What can be embedded in shells");
  await page.locator("input").fill("the life of a seed");
  await page.waitForSelector("#found a[aria-selected=true]");
  assert.match(await page.locator("#found a b").first().textContent(), /life of a seed/i);
});
await test("the first key leads past the pages", {}, async (page) => {
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "to the content");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "content");
});
await test("light and dark are chosen, and remembered", { colorScheme: "light" }, async (page) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.locator("button.theme").click();
  const dark = await ground();
  assert.notEqual(light, dark);
  await page.goto(address(process.env.SITE, "guard.html"));
  assert.equal(await ground(), dark);
});
await test("with scripts off", { javaScriptEnabled: false }, async (page) => {
  assert.ok(await page.locator("main h1").isVisible());
  assert.ok(await page.locator(".search").isHidden());
  await page.locator("nav.pages a", { hasText: "The guard" }).click();
  assert.equal(await page.locator("main h1").textContent(), "The guard#");
});
await test("texts that mean ill", {}, async (page) => {
  for (const name of readdirSync(process.env.EVIL).filter((file) => file.endsWith(".html"))) {
    await page.goto(address(process.env.EVIL, name));
    await page.keyboard.press("/");
    await page.keyboard.type("<img");
    await page.waitForSelector("#found a");
    assert.equal(await page.locator("[onerror], [onclick], main script").count(), 0);
    await page.keyboard.press("Escape");
  }
  await page.goto(address(process.env.EVIL, "index.html"));
  await page.locator("nav.pages a", { hasText: "Scheme" }).click();
  await page.waitForURL(/javascript%3Aalert/);
}, process.env.EVIL);

console.log(`${n - failed} of ${n} passed`);
await browser.close();
process.exit(failed ? 1 : 0);
