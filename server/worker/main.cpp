// gpupool-worker: one process per session, started by gpupoold.
//
//   gpupool-worker --supervision-fd N   serve the session that the daemon assigns over descriptor N
//   gpupool-worker --probe DRIVER       describe a driver as JSON and end

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "common/driver_environment.h"
#include "common/log.h"
#include "common/visible_devices.h"
#include "protocol/codec/layout.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"
#include "server/driver/library.h"
#include "server/supervision/worker_link.h"
#include "server/worker/probe.h"
#include "server/worker/welcome.h"
#include "server/worker/worker.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::milliseconds kEndPatience{500};

Status send_message(transport::Connection& connection, wire::FrameType type, capnp::MessageBuilder& message) {
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    return wire::write_frame(connection, type, std::as_bytes(std::span(bytes.begin(), bytes.size())));
}

void refuse(transport::Connection& connection, const std::string& why) {
    capnp::MallocMessageBuilder message;
    auto refused = message.initRoot<schema::Refused>();
    refused.setReason(schema::Refused::Reason::DRIVER);
    refused.setMessage(why);
    (void)send_message(connection, wire::FrameType::refused, message);
}

// What the driver reads from the environment is the client's to say, within these names.
void take_environment(schema::SessionRequest::Reader request) {
    const auto variable = [](const char* name) {
        const char* const value = std::getenv(name);
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    };
    const std::optional<std::string> operators_devices = variable("CUDA_VISIBLE_DEVICES");
    for (const char* name : kDriverVariables) {
        unsetenv(name);
    }
    // Launches must never block the dispatcher: the client waits by itself when this is asked of it.
    unsetenv("CUDA_LAUNCH_BLOCKING");
    for (const auto entry : request.getEnvironment()) {
        if (const std::string name = entry.getName(); is_driver_variable(name)) {
            setenv(name.c_str(), entry.getValue().cStr(), 1);
        }
    }
    // What the server's operator hides stays hidden.
    if (const auto devices = visible_among(operators_devices, variable("CUDA_VISIBLE_DEVICES"))) {
        setenv("CUDA_VISIBLE_DEVICES", devices->c_str(), 1);
    }
}

// How the daemon, which sees all of the server's devices, knows those of this session.
std::vector<std::string> uuids_of(schema::Welcome::Reader welcome) {
    std::vector<std::string> texts;
    for (const auto device : welcome.getDevices()) {
        DeviceUuid uuid{};
        const auto bytes = device.getUuid();
        std::memcpy(uuid.data(), bytes.begin(), std::min(bytes.size(), uuid.size()));
        texts.push_back(uuid_text(uuid));
    }
    return texts;
}

// The driver's and our threads may be in the middle of anything: no destructors, and nobody's stack is left.
[[noreturn]] void end_process(int code) {
    std::fflush(nullptr);
    _exit(code);
}

// Returns only where no session came about.
int serve(supervision::WorkerLink& link, std::unique_ptr<transport::Connection> connection) {
    const schema::Assignment::Reader assignment = link.assignment();
    const auto request = assignment.getHello().getPurpose().getSession();
    take_environment(request);
    // Never taken down, like the worker below: the driver may print while the process ends.
    auto& output = *new DeviceOutput;
    auto& errors = *new DeviceOutput;
    Status captured = output.capture(STDOUT_FILENO);
    captured = captured ? errors.capture(STDERR_FILENO) : captured;
    if (!captured) {
        log::warn("what kernels print cannot be forwarded: {}", captured.error().message);
    }
    const Result<driver::Library> library = driver::load(assignment.getDriverPath());
    if (!library) {
        refuse(*connection, "the server cannot load its driver: " + library.error().message);
        return 1;
    }
    if (const CUresult result = driver::call(library->api.cuInit, 0u);
        result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE) {
        refuse(*connection, "the server's driver does not start: cuInit gives error " + std::to_string(result));
        return 1;
    }
    int visible = 0;
    if (driver::call(library->api.cuDeviceGetCount, &visible) != CUDA_SUCCESS || visible == 0) {
        const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
        refuse(*connection, chosen == nullptr
                                ? std::string("the server has no GPU")
                                : "CUDA_VISIBLE_DEVICES shows none of the server's GPUs (the driver was given '" +
                                      std::string(chosen) + "')");
        return 1;
    }
    const Result<Window> window = reserve_window(library->api, request.getAddressWindows());
    if (!window) {
        refuse(*connection, window.error().message);
        return 1;
    }
    capnp::MallocMessageBuilder message;
    auto welcome = message.initRoot<schema::Welcome>();
    welcome.setProtocolVersion(schema::PROTOCOL_VERSION);
    welcome.setTableFingerprint(codec::table_fingerprint());
    welcome.setSessionId(assignment.getSessionId());
    welcome.setSessionToken(assignment.getSessionToken());
    welcome.setServerVersion(GPUPOOL_VERSION);
    welcome.initGrantedQuota().setMemoryBytes(assignment.getMemoryQuotaBytes());
    welcome.initWindow().setBase(window->base);
    welcome.getWindow().setBytes(window->bytes);
    describe_driver(*library, welcome);
    const int devices = static_cast<int>(welcome.getDevices().size());

    Worker::Options options;
    options.memory_quota_bytes = assignment.getMemoryQuotaBytes();
    options.window_base = window->base;
    options.window_bytes = window->bytes;
    options.output = &output;
    options.errors = &errors;
    options.memory_changed = [&link](std::vector<std::uint64_t> used) { link.set_memory_used(std::move(used)); };
    // Even where the dispatcher waits in a driver call that never returns.
    options.ending = [&link] { link.end_within(kEndPatience); };
    // Never taken down: threads of the driver may still use it while the process ends.
    auto& worker = *new Worker(*library, devices, std::move(options));
    supervision::WorkerHandlers handlers;
    handlers.stop = [&worker](const std::string& reason) { worker.stop(reason); };
    handlers.client_gone = [&worker] { worker.stop("the client went away"); };
    link.set_devices(uuids_of(welcome.asReader()));
    if (const Status watched = link.watch_client(connection->native_handle()); !watched) {
        log::warn("cannot watch the client's connection: {}", watched.error().message);
    }
    link.start(std::move(handlers));
    if (const Status sent = send_message(*connection, wire::FrameType::welcome, message); !sent) {
        end_process(1);
    }
    link.set_state("running");
    const Error cause = worker.run(std::move(connection));
    log::info("session {} ended: {}", assignment.getSessionId().cStr(), cause.message);
    link.end_within(kEndPatience);
    end_process(0);
}

int serve_supervised(int descriptor) {
    auto link = supervision::WorkerLink::open(descriptor);
    if (!link) {
        std::fprintf(stderr, "gpupool-worker: %s\n", link.error().message.c_str());
        return 1;
    }
    if (const auto level = log::parse_level((*link)->assignment().getLogLevel().cStr())) {
        // Standard error becomes the driver's, whose words are for the client.
        if (const Status kept = log::to_present_stderr(*level); !kept) {
            log::to_stderr(*level);
        }
    }
    auto connection = transport::adopt((*link)->take_connection());
    if (!connection) {
        log::error("the client's connection cannot be taken over: {}", connection.error().message);
        return 1;
    }
    (*connection)->set_send_patience({});  // a client that is stopped for a while may go on; the daemon had less time
    return serve(**link, std::move(*connection));
}

// Addresses that the driver chooses (module globals, pools) must not be ones that the client's process uses for its own
// memory, which lies near the top of the address space. In the legacy layout this process's mappings begin at a third
// of it and grow upwards, far from there.
void use_legacy_layout(char** argv) {
#if !defined(__SANITIZE_THREAD__)
    const int current = personality(0xffffffff);
    if (current >= 0 && (current & ADDR_COMPAT_LAYOUT) == 0 &&
        personality(static_cast<unsigned long>(current) | ADDR_COMPAT_LAYOUT) >= 0) {
        execv("/proc/self/exe", argv);
    }
#else
    (void)argv;
#endif
    prctl(PR_SET_NAME, "gpupool-worker");  // the new image is named after the link
}

}  // namespace
}  // namespace gpupool::worker

int main(int argc, char** argv) {
    using namespace gpupool;
    std::signal(SIGPIPE, SIG_IGN);
    const std::string option = argc == 3 ? argv[1] : "";
    if (option == "--probe") {
        return worker::probe(argv[2]);
    }
    int descriptor = -1;
    if (option == "--supervision-fd") {
        std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), descriptor);
    }
    if (descriptor < 0) {
        std::fprintf(stderr,
                     "gpupool-worker is started by gpupoold. By hand: gpupool-worker --probe auto|software|PATH\n");
        return 2;
    }
    worker::use_legacy_layout(argv);
    worker::end_process(worker::serve_supervised(descriptor));
}
