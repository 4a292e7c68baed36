// gpupool-worker: one process per session, started by gpupoold.
//
//   gpupool-worker --supervision-fd N   serve the session that the daemon assigns over descriptor N
//   gpupool-worker --probe DRIVER       describe a driver as JSON and end; --probe-contexts also measures contexts
//
// Either may be followed by `--sandbox ITEM...` (server/isolation/sandbox.h).

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <fmt/format.h>
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
#include <span>
#include <system_error>

#include "common/log.h"
#include "common/version.h"
#include "common/visible_devices.h"
#include "protocol/codec/agreement.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"
#include "server/isolation/sandbox.h"
#include "server/supervision/worker_link.h"
#include "server/worker/dispatch/worker.h"
#include "server/worker/session/prepared.h"
#include "server/worker/session/probe.h"
#include "server/worker/session/welcome.h"

namespace gpupool::worker {
namespace {

constexpr std::chrono::milliseconds kEndTimeout{500};

Status send_message(transport::Connection& connection, wire::FrameType type, capnp::MessageBuilder& message) {
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    return wire::write_frame(connection, type, std::as_bytes(std::span(bytes.begin(), bytes.size())));
}

void refuse(transport::Connection& connection, const std::string& why,
            schema::Refused::Reason reason = schema::Refused::Reason::DRIVER) {
    capnp::MallocMessageBuilder message;
    auto refused = message.initRoot<schema::Refused>();
    refused.setReason(reason);
    refused.setMessage(why);
    (void)send_message(connection, wire::FrameType::refused, message);
}

// The UUIDs by which the daemon, which sees all of the server's devices, knows those of this session.
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

// The session's part of its job's account.
Result<std::unique_ptr<MemoryAccount>> open_account(const supervision::WorkerLink& link,
                                                    schema::Welcome::Reader welcome) {
    auto account = link.open_account();
    if (!account) {
        return account.error();
    }
    std::vector<std::size_t> devices;
    for (const std::string& uuid : uuids_of(welcome)) {
        const auto device = account->find(uuid);
        if (!device) {
            return Error{ErrorCode::internal, "the server has no account for its device " + uuid};
        }
        devices.push_back(*device);
    }
    return std::make_unique<MemoryAccount>(std::move(*account), link.assignment().getAccount().getSlot(),
                                           std::move(devices));
}

// A program sees a device with as much memory as it may allocate.
void show_quotas(const MemoryAccount& account, schema::Welcome::Builder welcome) {
    CUdevice device = 0;
    for (auto described : welcome.getDevices()) {
        if (const std::uint64_t quota = account.quota_bytes(device++); quota != 0) {
            described.setTotalMemory(std::min(described.getTotalMemory(), quota));
        }
    }
}

// The tenant's folder in which the driver caches code that it compiles. The driver reads its name before a worker of
// the stock has a tenant, so the name leads through a descriptor that gets the folder later.
class DriverCache {
  public:
    DriverCache() : descriptor_(::open("/dev/null", O_PATH | O_CLOEXEC)) {
        const std::string path = fmt::format("/proc/self/fd/{}/jit", descriptor_.get());
        ::setenv("CUDA_CACHE_PATH", path.c_str(), 1);
    }
    void open_in(const UniqueFd& image_folder) const {
        if (image_folder && descriptor_) {
            ::dup3(image_folder.get(), descriptor_.get(), O_CLOEXEC);
        }
    }

  private:
    const UniqueFd descriptor_;
};

wire::CompressionMode compression_of(schema::SessionRequest::Reader request) {
    switch (request.getCompression()) {
        case schema::SessionRequest::Compression::NEVER: return wire::CompressionMode::never;
        case schema::SessionRequest::Compression::ALWAYS: return wire::CompressionMode::always;
        default: return wire::CompressionMode::when_it_pays;  // also for values that a newer client may send
    }
}

std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
    return std::as_bytes(std::span(data.begin(), data.size()));
}

// The calls and notices that the client and this worker both know. An error if they are too few for a session.
Result<codec::Agreement> agree_with(schema::Hello::Reader hello) {
    const auto request = hello.getPurpose().getSession();
    const auto theirs = codec::read_knowledge(bytes_of(request.getCalls()), bytes_of(request.getNotices()));
    if (!theirs) {
        return theirs.error().within("the Hello is invalid");
    }
    codec::Agreement agreement(codec::own_knowledge(), *theirs);
    const codec::Ends ends{codec::Ends::Side::server, hello.getClient().getVersion().cStr(), version()};
    GPUPOOL_TRY(agreement.check_core(ends));
    if (const std::string summary = agreement.summary(ends); !summary.empty()) {
        log::warn("{}", summary);
    }
    return agreement;
}

capnp::Data::Reader data_of(const std::vector<codec::Known>& list) {
    const auto bytes = codec::known_bytes(list);
    return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

// Ends without destructors: threads of the driver and of the worker may still run.
[[noreturn]] void end_process(int code) {
    std::fflush(nullptr);
    _exit(code);
}

// Returns only if the session could not begin.
int serve(supervision::WorkerLink& link, std::unique_ptr<transport::Connection> connection, codec::Agreement agreement,
          Result<std::unique_ptr<Prepared>> prepared, UniqueFd image_folder) {
    const schema::Assignment::Reader assignment = link.assignment();
    const auto request = assignment.getHello().getPurpose().getSession();
    if (!prepared) {
        refuse(*connection, prepared.error().message);
        return 1;
    }
    // Never destroyed: threads of the driver may use it while the process ends.
    Prepared& ready = *prepared->release();
    const driver::Library* const library = &ready.library;
    const Result<Window> window = reserve_window(library->api, request.getAddressWindows());
    if (!window) {
        refuse(*connection, window.error().message);
        return 1;
    }
    auto welcome = ready.welcome.getRoot<schema::Welcome>();
    welcome.setProtocolVersion(schema::PROTOCOL_VERSION);
    welcome.setCalls(data_of(codec::own_knowledge().calls));
    welcome.setNotices(data_of(codec::own_knowledge().notices));
    welcome.setSessionId(assignment.getSessionId());
    welcome.setSessionToken(assignment.getSessionToken());
    welcome.setMaxLanes(assignment.getMaxLanes());
    if (assignment.hasGrant()) {
        welcome.setGrant(assignment.getGrant());
    }
    welcome.setServerVersion(version());
    welcome.initWindow().setBase(window->base);
    welcome.getWindow().setBytes(window->bytes);
    const int devices = static_cast<int>(welcome.getDevices().size());

    std::unique_ptr<ImageStore> image_store;  // null if no images are to be kept
    if (image_folder) {
        image_store = std::make_unique<ImageStore>(std::move(image_folder), assignment.getImageLimitBytes());
    }

    Worker::Options options;
    options.agreement = std::move(agreement);
    auto account = open_account(link, welcome.asReader());
    if (!account) {
        refuse(*connection, account.error().message, schema::Refused::Reason::INTERNAL);
        return 1;
    }
    show_quotas(**account, welcome);
    options.account = std::move(*account);
    options.window = {window->base, window->bytes};
    options.output = &ready.output;
    options.errors = &ready.errors;
    options.image_store = image_store.get();
    options.max_lanes = assignment.getMaxLanes();
    options.compression = compression_of(request);
    options.issuers = assignment.getIssuers();
    options.shared_memory_bytes = assignment.getSharedMemoryBytes();
    options.prepared_context = ready.context;
    options.waits_changed = [&link](const auto& entries_by_reason) {
        supervision::WorkerLink::Waits waits;
        for (std::size_t reason = 0; reason < entries_by_reason.size(); ++reason) {
            if (const std::size_t entries = entries_by_reason.at(reason); entries != 0) {
                waits.emplace_back(codec::name_of(static_cast<codec::Reason>(reason)), entries);
            }
        }
        link.set_waits(std::move(waits));
    };
    options.counters = link.counters();
    options.limits = supervision::read(assignment.getLimits());
    options.memory_changed = [&link](std::vector<std::uint64_t> used) { link.set_memory_used(std::move(used)); };
    // Ends the process even if the dispatcher is blocked in a driver call that never returns.
    options.ending = [&link] { link.end_within(kEndTimeout); };
    // Never destroyed: threads of the driver may still use it while the process ends.
    Worker* made = nullptr;
    try {
        made = new Worker(*library, devices, std::move(options));
    } catch (const std::system_error& error) {
        refuse(*connection, std::string("the server cannot start a thread for the session: ") + error.what());
        return 1;
    }
    Worker& worker = *made;
    supervision::WorkerHandlers handlers;
    handlers.stop = [&worker](const std::string& reason) { worker.stop(reason); };
    handlers.client_gone = [&worker] { worker.stop("the client went away"); };
    handlers.limits = [&worker](const supervision::SessionLimits& limits) {
        worker.post([&worker, limits] { worker.set_limits(limits); });
    };
    handlers.lane = [&worker](std::size_t index, std::vector<UniqueFd> connection_parts) {
        auto lane = transport::adopt(std::move(connection_parts));
        if (!lane) {
            log::warn("cannot take over lane {} (a connection for bulk data): {}", index, lane.error().message);
            return;
        }
        worker.add_lane(index, std::move(*lane));
    };
    link.set_devices(uuids_of(welcome.asReader()));
    if (const Status watched = link.watch_client(connection->native_handle()); !watched) {
        log::warn("cannot watch the client's connection: {}", watched.error().message);
    }
    link.start(std::move(handlers));
    if (const Status sent = send_message(*connection, wire::FrameType::welcome, ready.welcome); !sent) {
        end_process(1);
    }
    link.set_state("running");
    const Error cause = worker.run(std::move(connection));
    log::info("session {} ended: {}", assignment.getSessionId().cStr(), cause.message);
    link.end_within(kEndTimeout);
    link.await_report(kEndTimeout / 2);  // of what the session has copied in its last second
    if (image_store != nullptr) {
        image_store->finish(kEndTimeout / 2);
    }
    end_process(0);
}

void set_log_level(capnp::Text::Reader text) {
    if (const auto level = log::parse_level(text.cStr())) {
        // Standard error will be captured for the client; the log keeps the present one.
        if (const Status kept = log::to_present_stderr(*level); !kept) {
            log::to_stderr(*level);
        }
    }
}

// Prepares a worker of the stock before it has a session. Until then the kernel kills it if the daemon dies, even if it
// hangs in the driver.
Result<std::unique_ptr<Prepared>> prepare_for_stock(supervision::WorkerLink& link) {
    const auto preparation = *link.preparation();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != static_cast<pid_t>(preparation.getDaemonProcessId())) {
        return Error{ErrorCode::closed, "the daemon is gone"};
    }
    set_log_level(preparation.getLogLevel());
    auto prepared = prepare(preparation.getDriverPath(), preparation.getEnvironment());
    if (!prepared) {
        log::error("a worker for the stock cannot be prepared: {}", prepared.error().message);
        return prepared.error();
    }
    if (preparation.getContext()) {
        prepare_context(**prepared);
    }
    GPUPOOL_TRY(link.await_assignment([&] { return keep_context(**prepared); }));
    // If the daemon dies at this very moment, this session is lost, like one whose assignment was never sent.
    prctl(PR_SET_PDEATHSIG, 0);
    return prepared;
}

int serve_supervised(int descriptor) {
    auto link = supervision::WorkerLink::open(descriptor);
    if (!link) {
        std::fprintf(stderr, "gpupool-worker: %s\n", link.error().message.c_str());
        return 1;
    }
    const DriverCache driver_cache;
    Result<std::unique_ptr<Prepared>> prepared = Error{ErrorCode::internal, "not prepared"};
    if ((*link)->preparation()) {
        prepared = prepare_for_stock(**link);
        if (!prepared) {
            return 1;  // no client waits for it
        }
    } else {
        set_log_level((*link)->assignment().getLogLevel());
    }
    auto connection = transport::adopt((*link)->take_connection());
    if (!connection) {
        log::error("cannot take over the client's connection: {}", connection.error().message);
        return 1;
    }
    UniqueFd image_folder = (*link)->take_image_folder();
    driver_cache.open_in(image_folder);
    auto agreement = agree_with((*link)->assignment().getHello());
    if (!agreement) {
        log::warn("the session is refused: {}", agreement.error().message);
        refuse(**connection, agreement.error().message, schema::Refused::Reason::PROTOCOL);
        return 1;
    }
    if (!(*link)->preparation()) {
        const auto assignment = (*link)->assignment();
        prepared =
            prepare(assignment.getDriverPath(), assignment.getHello().getPurpose().getSession().getEnvironment());
    }
    return serve(**link, std::move(*connection), std::move(*agreement), std::move(prepared), std::move(image_folder));
}

// The driver must not choose addresses (module globals, pools) that the client's process uses for its own memory, which
// lies near the top of the address space. In the legacy layout this process's mappings begin at a third of the address
// space and grow upwards, far from there.
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
    prctl(PR_SET_NAME, "gpupool-worker");  // after execv the process would be named after the link
}

}  // namespace
}  // namespace gpupool::worker

int main(int argc, char** argv) {
    using namespace gpupool;
    std::signal(SIGPIPE, SIG_IGN);
    std::size_t own = 0;
    const auto sandbox = isolation::find_sandbox(std::span(argv, static_cast<std::size_t>(argc)), own);
    const std::string option = own == 3 ? argv[1] : "";
    const bool probes = option == "--probe" || option == "--probe-contexts";
    if (!probes) {
        worker::use_legacy_layout(argv);
    }
    Status entered = sandbox ? Status() : sandbox.error();
    if (sandbox && *sandbox) {
        entered = isolation::enter(**sandbox);
    }
    if (!entered) {
        std::fprintf(stderr, "gpupool-worker: it cannot enter its sandbox: %s\n", entered.error().message.c_str());
        return 2;
    }
    if (probes) {
        worker::end_process(worker::probe(argv[2], option == "--probe-contexts"));
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
    worker::end_process(worker::serve_supervised(descriptor));
}
