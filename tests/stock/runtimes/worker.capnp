# The worker, with its key and addresses, on a network that is this machine alone.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .worker),
    (name = "internet", network = (allow = ["local"])),
  ],
);

const worker :Workerd.Worker = (
  modules = [(name = "worker", esModule = embed "build/worker.js")],
  compatibilityDate = "2024-09-23",
  bindings = [
    (name = "apiKey", fromEnvironment = "BURSAR_API_KEY"),
    (name = "baseUrl", fromEnvironment = "BURSAR_BASE_URL"),
    (name = "shop", fromEnvironment = "SHOP_URL"),
  ],
);
