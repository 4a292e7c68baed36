// A whole worker over a driver that does nothing, with commands from a hostile client.
//
// An input is a list of commands: each selects a call and its flags, and holds the bytes from which its body is built
// (or a raw body). Bulk data is sent when the worker pulls it, sometimes not as requested.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "server/worker/dispatch/worker.h"
#include "tests/fuzz/call_functions.h"
#include "tests/fuzz/nothing_driver.h"
#include "tests/support/transport/inproc/connection.h"

using namespace gpupool;

namespace {

constexpr std::size_t kMaxInputBytes = 4u << 10;
constexpr std::size_t kMaxCommands = 64;
// It takes milliseconds, but the machine may be loaded.
constexpr std::chrono::seconds kMaxTimeout{60};
constexpr std::size_t kPipeBytes = 16u << 10;  // small, because zeroing it is much of an input's cost
constexpr std::uint64_t kContext = codec::make_handle(codec::HandleKind::context, 1);

// The client's receiving end: records pulls, and whether the last command was answered.
class Client final : public wire::Receiver {
  public:
    std::deque<codec::PullNotice> take_pulls() {
        const std::lock_guard lock(mutex_);
        return std::exchange(pulls_, {});
    }
    // Waits until there is a pull to answer (true), or the command was answered or the session has ended (false).
    bool wait_for(std::uint64_t number, std::chrono::steady_clock::time_point deadline) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_until(lock, deadline, [&] { return closed_ || answered_ >= number || !pulls_.empty(); })) {
            std::abort();  // the worker neither answers nor ends: it hangs
        }
        return !closed_ && answered_ < number;
    }
    void session_ended() {
        const std::lock_guard lock(mutex_);
        closed_ = true;
        changed_.notify_all();
    }

  private:
    std::span<std::byte> bulk_destination(std::uint64_t, std::uint64_t, std::size_t bytes) override {
        sink_.resize(std::max(sink_.size(), bytes));
        return std::span(sink_).first(bytes);
    }
    void on_bulk(std::uint64_t, std::uint64_t, std::size_t) override {}
    void on_frame(wire::FrameType, std::unique_ptr<std::byte[]> payload, std::size_t bytes) override {
        const std::lock_guard lock(mutex_);
        for (std::size_t offset = 0; bytes - offset >= sizeof(codec::ReplyHeader);) {
            codec::ReplyHeader header;
            std::memcpy(&header, payload.get() + offset, sizeof header);
            if (header.bytes < sizeof header || header.bytes > bytes - offset || header.bytes % 8 != 0) {
                std::abort();  // the worker's replies must be well-formed whatever it received
            }
            if (header.kind == codec::ReplyKind::result) {
                answered_ = std::max(answered_, header.number);
            } else if (header.opcode == static_cast<std::uint16_t>(codec::NoticeType::pull)) {
                codec::PullNotice pull;
                std::memcpy(&pull, payload.get() + offset + sizeof header, sizeof pull);
                pulls_.push_back(pull);
            }
            offset += header.bytes;
        }
        changed_.notify_all();
    }
    void on_closed(const Error&) override { session_ended(); }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<codec::PullNotice> pulls_;
    std::uint64_t answered_ = 0;
    bool closed_ = false;
    std::vector<std::byte> sink_;
};

class Session {
  public:
    Session() : worker_(fuzz::nothing_driver(), 1, options()) {
        auto [here, there] = transport::inproc::make_pair(kPipeBytes);
        thread_ = std::thread([this, connection = std::move(there)]() mutable { worker_.run(std::move(connection)); });
        channel_ = std::make_unique<wire::Channel>(std::move(here), client_);
        channel_->start();
    }
    ~Session() {
        channel_->close(std::chrono::milliseconds(0));
        worker_.stop("the input ends");
        thread_.join();
        // Held work refers to other parts of the worker, which a real process never destroys.
        for (auto& [handle, context] : worker_.session().objects.contexts) {
            context->each_stream([&](worker::StreamState& stream) {
                worker_.session().scheduler.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
            });
        }
    }

    void send(std::uint16_t opcode, std::uint16_t flags, std::uint64_t context, const fuzz::Body& body) {
        codec::CommandHeader header{};
        header.bytes = static_cast<std::uint32_t>(sizeof header + body.size());
        header.opcode = opcode;
        header.flags = flags;
        header.number = ++number_;
        header.context = context;
        (void)channel_->append(wire::FrameType::commands, header.bytes, [&](std::byte* place) {
            std::memcpy(place, &header, sizeof header);
            if (!body.empty()) {
                std::memcpy(place + sizeof header, body.data(), body.size());
            }
        });
    }

    void answer_pulls(fuzz::Input& in) {
        static const std::vector<std::byte> data(1u << 20);
        for (const codec::PullNotice& pull : client_.take_pulls()) {
            const std::uint8_t choice = in.byte();
            const std::uint64_t offset = choice == 255 ? pull.offset + 1 : pull.offset;
            const std::size_t bytes = choice == 254 ? 1 : std::min<std::size_t>(pull.bytes, data.size());
            (void)channel_->append_bulk(pull.transfer, offset, std::span(data).first(bytes));
        }
    }

    // Until the worker has processed everything sent. The stream of a host function waits for ever, so completion is
    // not awaited.
    void wait_until_processed(fuzz::Input& in) {
        fuzz::Body ticket(8);
        send(calls::gpHostFunctionDone::kOpcode, codec::kReplyWanted, kContext, ticket);
        const auto deadline = std::chrono::steady_clock::now() + kMaxTimeout;
        while (client_.wait_for(number_, deadline)) {
            answer_pulls(in);
        }
    }

  private:
    worker::Worker::Options options() {
        worker::Worker::Options options;
        // A real worker's process would end here, and its connection with it.
        options.ending = [this] { client_.session_ended(); };
        options.memory_quota_bytes = 1u << 30;
        options.window = {0x600000000000, 1ull << 40};
        return options;
    }

    Client client_;
    worker::Worker worker_;
    std::thread thread_;
    std::unique_ptr<wire::Channel> channel_;
    std::uint64_t number_ = 0;
};

// Creates a context and a stream, which later commands can use.
void begin(Session& session) {
    fuzz::Body retain;
    fuzz::put(retain, kContext);
    fuzz::put(retain, std::uint64_t{0});
    session.send(calls::cuDevicePrimaryCtxRetain::kOpcode, codec::kReplyWanted, 0, retain);
    fuzz::Input none({});
    session.wait_until_processed(none);
    fuzz::Body create;
    fuzz::put(create, codec::make_handle(codec::HandleKind::stream, 1));
    fuzz::put(create, std::uint64_t{0});
    session.send(calls::cuStreamCreate::kOpcode, 0, kContext, create);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const bool checked = [] {
        fuzz::require_all_opcodes();
        return true;
    }();
    if (!checked || size > kMaxInputBytes) {
        return 0;
    }
    fuzz::Input in({data, size});
    {
        Session session;
        begin(session);
        const auto calls = fuzz::call_functions();
        for (std::size_t i = 0; i < kMaxCommands && !in.empty(); ++i) {
            const fuzz::CallFunctions& call = calls[in.number(2) % calls.size()];
            const std::uint8_t how = in.byte();
            const std::uint16_t opcode = how == 255 ? static_cast<std::uint16_t>(in.number(2)) : call.opcode;
            const fuzz::Body body = how >= 253 ? in.take(codec::aligned(in.byte()) / 8 * 8) : call.build(in);
            if (body.size() % codec::kAlignment == 0) {
                session.send(opcode, how & 3, (how & 4) != 0 ? in.number(1) : kContext, body);
            }
        }
        session.wait_until_processed(in);
    }
    fuzz::free_pinned_memory();
    return 0;
}
