/* Search in a site that is opened from the file system: browsers start no worker there, so the script of the
   search worker runs in a hidden frame instead. Material looks for the name IFrameWorker. */
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.onmessage = null;
    this.waiting = [];
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.inner = frame.contentWindow;
    this.inner.postMessage = (data) => this.deliver(data);
    this.inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
    this.load(url).then(() => {
      const waiting = this.waiting;
      this.waiting = null;
      waiting.forEach((data) => this.postMessage(data));
    });
  }

  load(url) {
    return new Promise((resolve, reject) => {
      const script = this.inner.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = resolve;
      script.onerror = reject;
      this.inner.document.body.appendChild(script);
    });
  }

  deliver(data) {
    const event = new MessageEvent("message", { data });
    if (this.onmessage) this.onmessage(event);
    this.dispatchEvent(event);
  }

  postMessage(data) {
    if (this.waiting) this.waiting.push(data);
    else this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
  }

  terminate() {
    this.inner.frameElement.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
