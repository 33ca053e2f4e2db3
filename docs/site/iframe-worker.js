// Search in pages that are read from files: browsers start no worker there, so a hidden frame does its work.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = (this.inside = frame.contentWindow);
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.load(url).then(() => { const waiting = this.waiting; this.waiting = null; waiting.forEach((data) => this.postMessage(data)); });
    }

    load(url) {
      const script = this.inside.document.createElement("script");
      script.src = url;
      return new Promise((done, failed) => { script.onload = done; script.onerror = failed; this.inside.document.body.append(script); });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
  };
}
