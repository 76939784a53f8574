// A browser and a server for tests and pictures.
import { spawn } from "node:child_process";
import { chromium } from "playwright-core";

export async function openBrowser() {
  return chromium.launch({ executablePath: process.env.BROWSER, args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"] });
}

/** `esper serve`, when it listens. */
export async function serve(dir, port = 0) {
  const child = spawn(process.env.ESPER, ["serve", dir, ...(port ? ["--port", String(port)] : [])], { stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  await new Promise((resolve, reject) => {
    child.stdout.on("data", (part) => {
      text += part;
      if (text.includes("stop ")) resolve();
    });
    child.on("exit", () => reject(new Error("the server ended: " + text)));
  });
  const url = text.match(/http:\/\/\S+/)[0];
  return {
    url, port: Number(new URL(url).port),
    stop: () => new Promise((resolve) => {
      child.removeAllListeners("exit");
      child.on("exit", resolve);
      child.kill("SIGINT");
    }),
  };
}
