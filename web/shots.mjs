// The pictures of docs/images: scripts/test-web --shots DIR.
import { openBrowser, serve } from "./browser.mjs";

const browser = await openBrowser();
const server = await serve(process.env.RUNS);
const pictures = [
  { name: "runs", hash: "#/", width: 1200, height: 400, scheme: "light" },
  { name: "run", hash: "#/run/fashion-grown", width: 1200, height: 1260, scheme: "light", epoch: 4 },
  { name: "run-dark", hash: "#/run/drill", width: 1200, height: 900, scheme: "dark", at: "svg.health" },
  { name: "trials", hash: "#/run/fashion-grown", width: 1200, height: 620, scheme: "light", at: ".lanes" },
  { name: "compare", hash: "#/compare/fast-trials/fast-random/fast-learn", width: 1200, height: 900, scheme: "dark" },
  { name: "learn", hash: "#/run/learn-fast", width: 1200, height: 1000, scheme: "light" },
  { name: "phone", hash: "#/run/fashion-grown", width: 420, height: 900, scheme: "dark" },
];

for (const { name, hash, width, height, scheme, epoch, at } of pictures) {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme, reducedMotion: "reduce" });
  await page.goto(server.url + hash);
  await page.waitForSelector(hash === "#/" ? "table.runs tbody tr" : "main[data-ready=yes] section");
  await page.waitForTimeout(1500);
  if (epoch !== undefined) await page.locator("input[data-epochs]").first().fill(String(epoch));
  if (at) await page.locator(at).first().evaluate((node) => node.closest("section").scrollIntoView({ block: "start" }));
  await page.waitForTimeout(700);
  await page.screenshot({ path: `${process.env.SHOTS}/serve-${name}.png` });
  await page.close();
}
await browser.close();
await server.stop();
