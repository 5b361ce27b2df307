// Runs the search worker in a hidden frame where browsers refuse workers: on pages opened from file://.
// Material for MkDocs looks for the name IFrameWorker, and for the worker's script in the frame.
(function () {
  if (window.location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.onmessage = null;
      this.onerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.scope = this.frame.contentWindow;
      this.ready = new Promise((resolve) => {
        this.scope.cachalotReceive = (data) => this.receive(data);
        this.scope.cachalotReady = resolve;
      });
      this.scope.document.open();
      this.scope.document.write(
        "<html><body><script>" +
          "postMessage = (data) => cachalotReceive(data);" +
          "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {" +
          "  const script = document.createElement('script');" +
          "  script.src = url; script.onload = resolve; document.body.appendChild(script); })), Promise.resolve());" +
          "<\/script><script src=\"" + url + "\"><\/script><script>cachalotReady()<\/script></body></html>");
      this.scope.document.close();
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      if (this.onmessage) this.onmessage(event);
      this.dispatchEvent(event);
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
