#include "client/core/session/runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "client/core/dispatch/driver_log.h"
#include "client/core/dispatch/remote.h"
#include "common/environment.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/visible_devices.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::client {
namespace {

constexpr std::chrono::seconds kRetryAfter{10};

struct State {
    Mutex mutex;  // held while connecting
    std::atomic<Session*> connected{nullptr};
    std::atomic<Session*> initialised{nullptr};
    std::atomic<bool> forked{false};             // this is a child of a process that had initialised CUDA
    bool reported GP_GUARDED_BY(mutex) = false;  // the line on stderr has been printed
    std::optional<std::chrono::steady_clock::time_point> failed_at GP_GUARDED_BY(mutex);
};

// A forked child constructs it anew in place, because a thread that does not exist there may hold the lock.
alignas(State) std::byte storage[sizeof(State)];
State& state() {
    static State* const instance = new (storage) State;
    return *instance;
}

void after_fork_in_child() {
    const bool was_initialised = state().initialised.load() != nullptr || state().forked.load();
    Session* const old = state().connected.load();
    new (storage) State;
    reset_threads_after_fork();
    driver_log::after_fork_in_child();
    trace::after_fork_in_child();
    state().forked = was_initialised;
    if (old != nullptr) {
        old->close_descriptors();  // they are the parent's; the object itself is left untouched
    }
}

void report_once(State& s, const std::string& message) GP_REQUIRES(s.mutex) {
    if (!s.reported) {
        s.reported = true;
        std::fprintf(stderr, "gpupool: %s\n", message.c_str());
    }
    log::error("{}", message);
}

// Does CUDA_VISIBLE_DEVICES hide every device, whatever the server has? A UUID might name one of the server's devices.
bool all_devices_are_hidden() {
    const std::optional<std::string> shown = environment::raw("CUDA_VISIBLE_DEVICES");
    constexpr std::array<DeviceUuid, 256> kMoreThanExist{};
    return shown && shown->find("GPU-") == std::string::npos && shown->find("MIG-") == std::string::npos &&
           visible_devices(shown, kMoreThanExist).empty();
}

// Advice for a user if no server could be reached over TCP. Other errors say themselves what to do.
std::string advice(const Error& error, const std::string& server, bool named) {
    const bool unreachable = error.code == ErrorCode::unavailable || error.code == ErrorCode::timed_out;
    if (!unreachable || server.starts_with("unix:")) {
        return "";
    }
    return named ? " (check that gpupoold runs there and that this machine can reach it)"
                 : " (no server was named: set GPUPOOL_SERVER=HOST:PORT, or start the program with `gpupool run`)";
}

Session* connect_locked(State& s) GP_REQUIRES(s.mutex) {
    if (s.failed_at && std::chrono::steady_clock::now() - *s.failed_at < kRetryAfter) {
        return nullptr;
    }
    const auto fail = [&](const std::string& message) GP_REQUIRES(s.mutex) -> Session* {
        report_once(s, message);
        s.failed_at = std::chrono::steady_clock::now();
        return nullptr;
    };
    Result<Config> config = load_config();
    if (!config) {
        return fail("no GPU: " + config.error().message);
    }
    if (const Status opened = open_log(*config); !opened) {
        return fail("no GPU: " + opened.error().message);
    }
    if (all_devices_are_hidden()) {  // as with the driver: no device, and no message
        log::info("CUDA_VISIBLE_DEVICES shows no device: no server is asked");
        s.failed_at = std::chrono::steady_clock::now();
        return nullptr;
    }
    const bool named = !config->server.empty();
    if (!named) {
        config->server = transport::kDefaultAddress;
    }
    bool reached = false;
    Result<std::unique_ptr<Session>> session = Session::open(*config, reached);
    if (!session) {
        return fail("no GPU: " + session.error().message +
                    (reached ? "" : advice(session.error(), config->server, named)));
    }
    Session* const opened = session->release();  // never destroyed
    if (const Status traced = trace::start(*config, *opened); !traced) {
        std::fprintf(stderr, "gpupool: %s\n", traced.error().message.c_str());
        log::warn("{}", traced.error().message);
    }
    opened->synchronous = config->synchronous || environment::cuda_switch("CUDA_LAUNCH_BLOCKING");
    start_session(*opened);
    s.connected = opened;
    return opened;
}

}  // namespace

Session* connect_session() noexcept {
    State& s = state();
    if (Session* const connected = s.connected.load(std::memory_order_acquire)) {
        return connected;
    }
    if (s.forked) {
        return nullptr;
    }
    // Before taking the lock: the fork handler must exist before a thread can hold the lock.
    static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
    (void)registered;
    try {
        const Lock lock(s.mutex);
        Session* const connected = s.connected.load();
        return connected != nullptr ? connected : connect_locked(s);
    } catch (const std::exception& exception) {
        log::error("connecting failed: {}", exception.what());
        return nullptr;
    }
}

CUresult initialize(unsigned flags) noexcept {
    State& s = state();
    if (s.forked) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Session* const session = connect_session();
    if (session == nullptr || session->devices.devices.empty()) {
        return CUDA_ERROR_NO_DEVICE;
    }
    s.initialised.store(session, std::memory_order_release);
    if (trace::on()) [[unlikely]] {
        trace::follow_server({.start = [] { return remote<calls::gpTraceStart>(); },
                              .clock = [](std::uint64_t* now_ns) { return remote<calls::gpTraceClock>(now_ns); },
                              .flush = [] { return remote<calls::gpTraceFlush>(); }});
    }
    return session->lost() ? kSessionLost : CUDA_SUCCESS;
}

Session* session(CUresult& result) noexcept {
    Session* const ready = state().initialised.load(std::memory_order_acquire);
    if (ready == nullptr) {
        result = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    if (ready->lost()) {
        result = kSessionLost;
        return nullptr;
    }
    return ready;
}

Session& this_session() noexcept {
    return *state().initialised.load(std::memory_order_acquire);
}

}  // namespace gpupool::client
