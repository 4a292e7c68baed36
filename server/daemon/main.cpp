// gpupoold: the command line, startup and shutdown.
//
// Exit codes: 0 after an orderly end, 1 if it cannot serve (the message says why), 2 for a wrong command line.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/personality.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>

#include "common/environment.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/spin.h"
#include "common/version.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/open.h"
#include "protocol/transport/tcp/addresses.h"
#include "server/daemon/config.h"
#include "server/daemon/isolation.h"
#include "server/daemon/loop.h"
#include "server/daemon/metrics_endpoint.h"
#include "server/daemon/reception.h"
#include "server/daemon/supervisor.h"
#include "server/daemon/tenancy.h"
#include "server/daemon/worker_process.h"
#include "server/supervision/runtime_directory.h"

namespace gpupool::daemon {
namespace {

constexpr std::chrono::seconds kResolveTimeout{10};

struct Options {
    std::string config_file;
    std::vector<std::string> listen;
    std::string metrics;
    std::string driver;
    std::string log_level;
    std::string token_file;
    std::string runtime_directory;
    std::string worker;
    std::string image_directory;
    std::string image_limit;
    std::optional<std::size_t> stock_workers;
    int ready_descriptor = -1;
    int lifeline_descriptor = -1;
    bool check = false;
};

void declare(CLI::App& app, Options& options) {
    app.description("gpupoold serves this machine's GPUs (or a software GPU) to gpupool clients.");
    app.set_version_flag("--version", version());
    app.add_option("--config", options.config_file, "Configuration file (TOML), see docs/configuration.md");
    app.add_option(
           "--listen", options.listen,
           fmt::format("HOST:PORT or unix:/PATH to listen at, default {}; port 0: a free one. May be given several "
                       "times",
                       transport::kDefaultAddress))
        ->expected(1, kMaxAddresses)
        ->take_all();
    app.add_option("--metrics", options.metrics,
                   "HOST:PORT to serve metrics at, for Prometheus; port 0: a free one. Default: none are served");
    app.add_option("--driver", options.driver, "auto (default), software, or the path of a driver library");
    app.add_option("--log-level", options.log_level, "trace, debug, info (default), warn, error or off");
    app.add_option("--token-file", options.token_file, "File with the tokens that clients may use, one per line");
    app.add_option("--runtime-directory", options.runtime_directory,
                   "Directory through which a restarted gpupoold finds its workers");
    app.add_option("--worker", options.worker, "Path of gpupool-worker");
    app.add_option("--image-directory", options.image_directory,
                   "Directory that keeps code images for later sessions, or off");
    app.add_option("--image-limit", options.image_limit, "Maximum size of that directory, such as 8GiB");
    app.add_option("--stock", options.stock_workers,
                   "Workers to keep ready, with the driver initialised; default 1 with a GPU, else 0")
        ->check(CLI::Range(std::int64_t{0}, kMaxStock));
    app.add_option("--ready-fd", options.ready_descriptor,
                   "Descriptor to which the address is written, with a newline, once clients may connect");
    app.add_option("--lifeline-fd", options.lifeline_descriptor,
                   "Descriptor of a pipe: gpupoold stops when its other end is closed, and workers do not outlive it");
    app.add_flag("--check", options.check, "Check the configuration and the driver, print the result, and exit");
}

Result<Config> make_config(const Options& options) {
    Config config;
    if (!options.config_file.empty()) {
        GPUPOOL_TRY(read_config_file(options.config_file, config));
    }
    const auto override_with = [](std::string& setting, const std::string& option) {
        if (!option.empty()) {
            setting = option;
        }
    };
    if (!options.listen.empty()) {
        config.listen = options.listen;
        if (const Status known = check_addresses(config.listen); !known) {
            return known.error().within("--listen");
        }
    }
    if (!options.metrics.empty()) {
        config.metrics = options.metrics;
        if (const Status usable = check_metrics_address(config.metrics); !usable) {
            return usable.error().within("--metrics");
        }
    }
    GPUPOOL_TRY(check_spin_setting(environment::text("GPUPOOL_SPIN").value_or("")));
    override_with(config.driver, options.driver);
    override_with(config.log_level, options.log_level);
    override_with(config.token_file, options.token_file);
    override_with(config.runtime_directory, options.runtime_directory);
    override_with(config.worker, options.worker);
    override_with(config.image_directory, options.image_directory);
    if (options.stock_workers) {
        config.stock_workers = options.stock_workers;
    }
    if (!options.image_limit.empty()) {
        const auto limit = parse_image_limit(options.image_limit);
        if (!limit) {
            return limit.error().within("--image-limit");
        }
        config.image_limit_bytes = *limit;
    }
    if (config.runtime_directory.empty()) {
        config.runtime_directory = supervision::default_runtime_root();
    }
    if (options.lifeline_descriptor >= 0) {
        // Started for one program: a stock would be useless to it, and its token is generated for this run alone.
        config.daemon_grace = milliseconds(0);
        config.stock_workers = config.stock_workers.value_or(0);
        config.one_tenant = true;
        config.state_directory = "off";
    }
    return config;
}

// The signals that the daemon handles. Workers start with the default handling of all of them (spawn()).
class Signals {
  public:
    explicit Signals(Loop& loop) : set_(loop.context(), SIGTERM, SIGINT, SIGUSR1) {
        set_.add(SIGCHLD);
        set_.add(SIGHUP);
        ::signal(SIGPIPE, SIG_IGN);
        wait();
    }

    // From now on calls `handler`, on the loop, for each signal.
    void send_to(std::function<void(int)> handler) { handler_ = std::move(handler); }

  private:
    void wait() {
        set_.async_wait([this](const asio::error_code& error, int number) {
            if (!error) {
                handler_(number);
                wait();
            }
        });
    }

    asio::signal_set set_;
    std::function<void(int)> handler_ = [](int) {};
};

// Workers inherit descriptors 0 to 2 by number. They must exist, or another descriptor of the daemon would get such a
// number.
void fill_standard_descriptors() {
    int descriptor = ::open("/dev/null", O_RDWR);
    while (descriptor >= 0 && descriptor <= 2) {
        descriptor = ::dup(descriptor);
    }
    if (descriptor >= 0) {
        ::close(descriptor);
    }
}

// Workers run in the legacy address layout (server/worker/session/main.cpp says why). They inherit it from the daemon,
// which saves each of them from executing itself a second time. The daemon's own layout does not change.
void use_legacy_layout_for_workers() {
#if !defined(__SANITIZE_THREAD__)
    if (const int current = ::personality(0xffffffff); current >= 0) {
        ::personality(static_cast<unsigned long>(current) | ADDR_COMPAT_LAYOUT);
    }
#endif
}

bool is_loopback(const std::string& address) {
    return address.starts_with("unix:") || address.starts_with("127.") || address.starts_with("[::1]") ||
           address.starts_with("localhost:");
}

// Runs the loop until the worker has described the driver, or a signal says that the daemon must stop.
Result<DriverFacts> probe_driver(Loop& loop, Signals& signals, const std::string& worker, const ProbeRequest& request,
                                 milliseconds timeout) {
    Result<DriverFacts> facts = Error{ErrorCode::closed, "the server is stopping"};
    signals.send_to([&](int number) {
        if (number != SIGCHLD && number != SIGHUP) {
            loop.stop();
        }
    });
    const Probe probe(loop, worker, request, timeout, [&](Result<DriverFacts> answer) {
        facts = std::move(answer);
        loop.stop();
    });
    loop.run();
    signals.send_to([](int) {});
    return facts;
}

bool finds_gpu(const Result<DriverFacts>& facts, const std::string& setting) {
    return facts && (setting != "auto" || facts->kind != "software");
}

// Asks a worker in its sandbox about the driver. A first use of NVIDIA's driver may load the kernel's part and make
// device nodes, which a worker in a sandbox cannot do: if that one finds no GPU, one without does it.
Result<DriverFacts> probe_in_sandbox(Loop& loop, Signals& signals, const std::string& worker, ProbeRequest request,
                                     Isolation& isolation, milliseconds timeout) {
    const auto user = isolation.take_user();
    if (!user) {
        return user.error();
    }
    const ProbeRequest plain{request.driver};
    request.sandbox = isolation.sandbox(*user, request.driver, std::nullopt);
    auto facts = probe_driver(loop, signals, worker, request, timeout);
    if (finds_gpu(facts, request.driver)) {
        return facts;
    }
    const auto outside = probe_driver(loop, signals, worker, plain, timeout);
    if (!finds_gpu(outside, request.driver)) {
        return facts ? facts : outside;
    }
    facts = probe_driver(loop, signals, worker, request, timeout);
    if (finds_gpu(facts, request.driver)) {
        return facts;
    }
    return Error{
        ErrorCode::unavailable,
        fmt::format("the driver {} works, but not in the sandbox of a worker ({}): {}. Every user must be able "
                    "to read its files and to use the devices' nodes; isolation.seccomp = \"log\" logs refused "
                    "system calls",
                    outside->path, isolation.describe(), facts ? "it finds no GPU there" : facts.error().message)};
}

Result<DriverFacts> find_driver(const Config& config, const std::string& worker, Isolation& isolation, Loop& loop,
                                Signals& signals) {
    std::string driver = config.driver;
    if (driver == "software") {
        auto path = find_software_driver();
        if (!path) {
            return path.error();
        }
        driver = std::move(path).value();
    } else if (driver != "auto" && ::access(driver.c_str(), R_OK) != 0) {
        return system_error(
            fmt::format("cannot read the driver library {} (driver is auto, software, or a path)", driver), errno);
    }
    // A client may ask for a quota, beside which its context takes memory. A daemon for one program has no other
    // sessions to keep apart from it, and starts without the measurement.
    const bool measure_contexts = config.session_memory.any() || !config.one_tenant;
    ProbeRequest request{driver};
    request.contexts = measure_contexts;
    auto facts = probe_in_sandbox(loop, signals, worker, std::move(request), isolation, config.probe_timeout);
    if (!facts) {
        return facts.error().within(fmt::format("no usable driver ({})", config.driver));
    }
    return facts;
}

// One line per driver and device.
std::vector<std::string> describe(const DriverFacts& facts) {
    std::vector<std::string> lines{fmt::format("driver {} (version {}.{}{}{})", facts.path, facts.version / 1000,
                                               facts.version % 1000 / 10, facts.reason.empty() ? "" : "; ",
                                               facts.reason)};
    for (const auto& device : facts.devices) {
        lines.push_back(fmt::format("  {} {}, {} MiB", device.name, device.uuid, device.memory_total_bytes >> 20));
    }
    return lines;
}

constexpr const char* kNoDevice = "the driver has no device: programs will find none";

void log_driver(const DriverFacts& facts) {
    for (const std::string& line : describe(facts)) {
        log::info("{}", line);
    }
    if (facts.devices.empty()) {
        log::warn("{}", kNoDevice);
    }
}

void report_ready(int descriptor, const std::string& address) {
    if (descriptor < 0) {
        return;
    }
    const std::string line = address + "\n";
    [[maybe_unused]] const auto written = ::write(descriptor, line.data(), line.size());
    ::close(descriptor);
}

// Checks that host names resolve. Does not check that the addresses are free: the daemon that runs there now may be one
// that this one will replace.
Status check_hosts(const std::vector<std::string>& addresses) {
    for (const std::string& address : addresses) {
        const auto endpoint = transport::Endpoint::parse(address, transport::kDefaultPort);
        if (!endpoint || endpoint->is_path()) {
            continue;
        }
        if (const auto found = transport::tcp::resolve(*endpoint, transport::Clock::now() + kResolveTimeout); !found) {
            return found.error().within("listen");
        }
    }
    return {};
}

// What the daemon claims before it serves, in this order.
struct Place {
    std::string worker;
    std::vector<std::unique_ptr<transport::Listener>> listeners;  // the configured addresses first
    std::vector<std::string> addresses;                           // of the configured ones
    supervision::RuntimeDirectory directory;
    std::unique_ptr<transport::Listener> metrics;  // null: none are served
};

Result<std::unique_ptr<transport::Listener>> listen_for_metrics(const std::string& address) {
    const auto endpoint = transport::Endpoint::parse(address);
    if (!endpoint) {
        return endpoint.error().within("metrics");
    }
    auto listener = transport::listen(*endpoint);
    if (!listener) {
        return listener.error().within("metrics");
    }
    if (!is_loopback((*listener)->address())) {
        log::warn("anyone who can connect to {} can read the metrics, with the names of tenants",
                  (*listener)->address());
    }
    return listener;
}

// Without the local listener, clients on this host use TCP, which is slower.
void listen_locally(Place& place, const transport::Endpoint& address) {
    auto beside = transport::listen_beside(address);
    if (!beside) {
        log::warn("clients on this host get TCP instead of shared memory: {}", beside.error().message);
    } else if (*beside) {
        place.listeners.push_back(std::move(*beside));
    }
}

Result<Place> claim_place(const Config& config, std::string worker) {
    Place place;
    place.worker = std::move(worker);
    std::vector<transport::Endpoint> bound;
    for (const std::string& address : config.listen) {
        const auto endpoint = transport::Endpoint::parse(address, transport::kDefaultPort);
        if (!endpoint) {
            return endpoint.error().within("listen");
        }
        auto listener = transport::listen(*endpoint);
        if (!listener) {
            Error error = listener.error();
            if (error.message.find(std::strerror(EADDRINUSE)) != std::string::npos) {
                error.message += "; is another gpupoold running there? --listen takes another address";
            }
            return error;
        }
        place.addresses.push_back((*listener)->address());
        place.listeners.push_back(std::move(*listener));
        auto real = transport::Endpoint::parse(place.addresses.back());
        if (!real) {
            return real.error();
        }
        bound.push_back(std::move(*real));
    }
    auto directory = supervision::RuntimeDirectory::claim(config.runtime_directory, runtime_name(bound.front()));
    if (!directory) {
        return directory.error();
    }
    place.directory = std::move(*directory);
    if (!config.metrics.empty()) {
        auto metrics = listen_for_metrics(config.metrics);
        if (!metrics) {
            return metrics.error();
        }
        place.metrics = std::move(*metrics);
    }
    if (config.local) {
        for (const auto& address : bound) {
            listen_locally(place, address);
        }
    }
    return place;
}

Result<Departure> serve_at(Place& place, const Config& config, const Options& options, UniqueFd lifeline, Loop& loop,
                           Signals& signals) {
    // Workers of an earlier daemon may connect from now on. They are read once the driver is known.
    auto supervision_listener = place.directory.listen();
    if (!supervision_listener) {
        return supervision_listener.error();
    }
    Background background(loop);
    auto tenancy = Tenancy::open(loop, background, config);
    if (!tenancy) {
        return tenancy.error();
    }
    auto isolation = Isolation::decide(config);
    if (!isolation) {
        return isolation.error();
    }
    log::info("{}", isolation->describe());
    auto driver = find_driver(config, place.worker, *isolation, loop, signals);
    if (!driver) {
        return driver.error();
    }
    auto runtime_folder = place.directory.open();
    if (!runtime_folder) {
        return runtime_folder.error();
    }
    GPUPOOL_TRY((*tenancy)->policy()->check_devices(driver->devices.size()));
    log_driver(*driver);
    for (const auto& address : place.addresses) {
        if ((*tenancy)->open_to_all() && !is_loopback(address)) {
            log::warn("anyone who can connect to {} may use the GPUs: list tokens in the configuration", address);
        }
    }
    const std::string addresses = fmt::format("{}", fmt::join(place.addresses, ", "));
    SupervisorParts parts{place.worker,
                          addresses,
                          std::move(driver).value(),
                          std::move(supervision_listener).value(),
                          place.directory.supervision_path(),
                          std::move(runtime_folder).value(),
                          &*isolation,
                          std::move(lifeline)};
    Supervisor supervisor(loop, background, config, **tenancy, std::move(parts));
    Reception reception(
        loop, config, [&](std::string_view token) { return (*tenancy)->identify(token); }, supervisor);
    signals.send_to([&](int number) { supervisor.handle_signal(number); });
    std::optional<MetricsEndpoint> metrics;
    if (place.metrics != nullptr) {
        log::info("metrics at http://{}/metrics", place.metrics->address());
        metrics.emplace(loop, std::move(place.metrics), [&supervisor] { return supervisor.metrics(); });
    }
    reception.open(std::move(place.listeners));
    log::info("listening at {}", addresses);
    report_ready(options.ready_descriptor, place.addresses.front());
    const Departure departure = supervisor.run(reception);
    (*tenancy)->close();
    return departure;
}

// --check prints its result to standard output, whatever the log settings.
Status check(Config& config, const std::string& worker, Loop& loop, Signals& signals) {
    GPUPOOL_TRY(check_hosts(config.listen));
    GPUPOOL_TRY(choose_image_directory(config));
    const auto policy = policy::Policy::load(config.file, config.token_file);
    if (!policy) {
        return policy.error();
    }
    auto isolation = Isolation::decide(config);
    if (!isolation) {
        return isolation.error();
    }
    const auto driver = find_driver(config, worker, *isolation, loop, signals);
    if (!driver) {
        return driver.error();
    }
    GPUPOOL_TRY(policy->check_devices(driver->devices.size()));
    std::vector<std::string> lines = describe(*driver);
    if (driver->devices.empty()) {
        lines.emplace_back(kNoDevice);
    }
    lines.push_back(config.image_directory.empty() ? "code images are not kept"
                                                   : "code images are kept in " + config.image_directory);
    lines.push_back(isolation->describe());
    for (const std::string& line : lines) {
        std::puts(line.c_str());
    }
    return {};
}

Status serve(Config& config, const Options& options, Loop& loop, Signals& signals) {
    UniqueFd lifeline(options.lifeline_descriptor);
    for (const int inherited : {options.lifeline_descriptor, options.ready_descriptor}) {
        if (inherited >= 0 && ::fcntl(inherited, F_SETFD, FD_CLOEXEC) != 0) {
            return system_error(fmt::format("descriptor {} is not open", inherited), errno);
        }
    }
    GPUPOOL_TRY(choose_state_directory(config));
    auto worker = find_worker(config.worker);
    if (!worker) {
        return worker.error();
    }
    if (options.check) {
        return check(config, *worker, loop, signals);
    }
    prepare_image_directory(config);
    auto place = claim_place(config, std::move(worker).value());
    if (!place) {
        return place.error();
    }
    const auto served = serve_at(*place, config, options, std::move(lifeline), loop, signals);
    if (!served) {
        place->directory.abandon();
        return served.error();
    }
    if (*served == Departure::all_ended) {  // otherwise workers wait in it for the next daemon
        place->directory.remove();
    }
    log::info("{}", *served == Departure::all_ended ? "stopped" : "stopped; sessions go on");
    return {};
}

int run(int argc, char** argv) {
    CLI::App app;
    Options options;
    declare(app, options);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    fill_standard_descriptors();
    use_legacy_layout_for_workers();
    Loop loop;
    Signals signals(loop);
    auto config = make_config(options);
    if (!config) {
        std::fprintf(stderr, "gpupoold: %s\n", config.error().message.c_str());
        return 2;
    }
    if (const auto logging = set_up_log(*config); !logging) {
        std::fprintf(stderr, "gpupoold: %s\n", logging.error().message.c_str());
        return 2;
    }
    const auto served = serve(*config, options, loop, signals);
    if (!served) {
        std::fprintf(stderr, "gpupoold: %s\n", served.error().message.c_str());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace gpupool::daemon

int main(int argc, char** argv) {
    return gpupool::daemon::run(argc, argv);
}
