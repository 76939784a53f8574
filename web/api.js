// What the server knows, once and from then on.

export class Missing extends Error {}

export async function get(path, parameters = {}, as = "json") {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(path + (query ? "?" + query : ""), { headers: { Accept: as === "json" ? "application/json" : "*/*" } });
  if (!answer.ok) {
    const words = (await answer.text()).trim();
    throw new (answer.status === 404 ? Missing : Error)(words || `${answer.status}`);
  }
  return as === "json" ? answer.json() : answer.text();
}

/**
 * Listens until `close` of the answer is called. A stream that breaks is opened again, after one second, two, four and so on up to
 * half a minute; `query` is asked anew each time, so that it begins where the last one ended.
 * @param {() => Object<string, string>} query
 * @param {Object<string, (data: any, id: string) => void>} handlers by event
 * @param {(state: "live"|"waiting") => void} tell
 */
export function listen(query, handlers, tell) {
  let source = null;
  let timer = 0;
  let tries = 0;
  let closed = false;

  function open() {
    source = new EventSource("api/live?" + new URLSearchParams(query()));
    source.onopen = () => {
      tries = 0;
      tell("live");
    };
    source.onerror = () => {
      source.close();
      if (closed) return;
      tell("waiting");
      timer = setTimeout(open, Math.min(30000, 500 * 2 ** tries++));
    };
    for (const [event, handle] of Object.entries(handlers))
      source.addEventListener(event, (message) => {
        if (!closed) handle(JSON.parse(message.data), message.lastEventId);
      });
  }
  open();
  return {
    close() {
      closed = true;
      clearTimeout(timer);
      source.close();
    },
  };
}
