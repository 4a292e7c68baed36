// A worker without a driver, for the daemon's tests: it takes a session over, answers Welcome without devices, and
// holds the connection. The client's process name selects how it misbehaves:
//   die-early      ends before it takes the session over
//   crash          ends by a signal once its client sends something
//   never-ends     reports `ending` when its client leaves, and does not end
//   ignores-stop   ignores the daemon's stop message
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "protocol/schema/control.capnp.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"
#include "server/isolation/sandbox.h"
#include "server/supervision/worker_link.h"

namespace gpupool {
namespace {

using transport::Connection;

int probe(const std::string& driver) {
    if (driver == "/dev/null") {
        std::puts(R"({"error": "no driver could be loaded: this is the stand-in's own refusal"})");
        return 1;
    }
    std::printf(R"({"driver": "%s", "reason": "stand-in", "kind": "software", "driver_version": 13000,
        "devices": [{"name": "Stand-in GPU", "uuid": "GPU-00000000-0000-0000-0000-000000000001",
                     "memory_total": 4294967296},
                    {"name": "Stand-in GPU", "uuid": "GPU-00000000-0000-0000-0000-000000000002",
                     "memory_total": 4294967296}]})",
                driver.c_str());
    return 0;
}

void send(Connection& connection, wire::FrameType type, capnp::MessageBuilder& message) {
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    (void)wire::write_frame(connection, type, std::as_bytes(std::span(bytes.begin(), bytes.size())));
}

// Counts what survived exec of the daemon's descriptors, apart from the standard three and the supervision socket, and
// of its settings of signals.
int count_strays() {
    int strays = 0;
    sigset_t blocked;
    ::sigprocmask(SIG_BLOCK, nullptr, &blocked);
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action {};
        const bool ignored = ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
        strays += ignored || ::sigismember(&blocked, number) == 1 ? 1 : 0;
    }
    for (int descriptor = 4; descriptor < 1024; ++descriptor) {
        strays += ::fcntl(descriptor, F_GETFD) >= 0 ? 1 : 0;
    }
    return strays;
}

int serve(int supervision_descriptor, int strays) {
    supervision::WorkerLimits limits;
    limits.report_interval = std::chrono::milliseconds(200);
    auto opened = supervision::WorkerLink::open(supervision_descriptor, limits);
    if (!opened) {
        std::fprintf(stderr, "stand-in: %s\n", opened.error().message.c_str());
        return 1;
    }
    auto& link = **opened;
    const std::string behaviour = link.assignment().getHello().getClient().getProcessName().cStr();
    if (behaviour == "die-early") {
        return 3;
    }
    auto connection = transport::adopt(link.take_connection());
    if (!connection) {
        return 1;
    }
    Connection& client = **connection;
    supervision::WorkerHandlers handlers;
    handlers.stop = [&](const std::string& reason) {
        if (behaviour == "ignores-stop") {
            return;
        }
        capnp::MallocMessageBuilder message;
        message.initRoot<schema::Refused>().setMessage(reason.c_str());
        send(client, wire::FrameType::control, message);
        client.shutdown();
    };
    handlers.client_gone = [&] { client.shutdown(); };
    link.start(handlers);
    if (!link.watch_client(client.native_handle())) {
        return 1;
    }
    capnp::MallocMessageBuilder message;
    auto welcome = message.initRoot<schema::Welcome>();
    welcome.setProtocolVersion(schema::PROTOCOL_VERSION);
    welcome.setSessionId(link.assignment().getSessionId());
    welcome.setServerVersion(std::to_string(strays).c_str());
    send(client, wire::FrameType::welcome, message);
    // As for a program that sees the second device only.
    link.set_devices({"GPU-00000000-0000-0000-0000-000000000002"});
    link.set_memory_used({100u << 20});
    link.set_waits({{"credit", 2}, {"data", 1}});
    link.set_state("running");
    if (behaviour == "crash") {
        std::byte sign;
        (void)client.receive({&sign, 1});
        // A sanitizer's report ends a process with abort(), so this uses another signal.
        ::kill(::getpid(), SIGKILL);
    }
    std::byte buffer[4096];
    while (client.receive(buffer)) {
    }
    if (behaviour == "never-ends" || behaviour == "ignores-stop") {
        if (behaviour == "never-ends") {
            link.set_state("ending");
        }
        while (true) {
            ::pause();
        }
    }
    link.end_within(std::chrono::milliseconds(500));
    opened->reset();  // its thread calls handlers that use the connection
    return 0;
}

// A sanitizer's search for leaks, at an orderly end, makes calls that the sandbox refuses.
[[noreturn]] void end(int code) {
    std::fflush(nullptr);
    ::_exit(code);
}

}  // namespace
}  // namespace gpupool

int main(int argc, char** argv) {
    const int strays = gpupool::count_strays();  // before the sandbox, which opens files
    std::size_t own = 0;
    const auto sandbox = gpupool::isolation::find_sandbox(std::span(argv, static_cast<std::size_t>(argc)), own);
    if (!sandbox || (*sandbox && !gpupool::isolation::enter(**sandbox))) {
        std::fprintf(stderr, "stand-in: no sandbox\n");
        return 2;
    }
    const std::string option = own == 3 ? argv[1] : "";
    if (option == "--probe" || option == "--probe-contexts") {
        gpupool::end(gpupool::probe(argv[2]));
    }
    if (option == "--supervision-fd") {
        gpupool::end(gpupool::serve(std::atoi(argv[2]), strays));
    }
    std::fprintf(stderr, "stand-in: --probe DRIVER or --supervision-fd N\n");
    return 2;
}
