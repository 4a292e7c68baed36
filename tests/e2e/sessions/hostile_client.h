// A client under the test's full control: it speaks the protocol with the project's own libraries, and violates any
// rule that the test wants violated.
//
// Ownership: owns its connection. Threads: one. Errors: those that a test may expect are returned; others throw.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/calls/call.h"
#include "protocol/codec/agreement.h"
#include "protocol/codec/command.h"
#include "protocol/wire/frame.h"
#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {

struct Answer {
    codec::ReplyHeader header{};
    std::vector<std::byte> body;
};

class HostileClient {
  public:
    static constexpr std::uint64_t kWindowBase = 0x7e8000000000, kWindowBytes = 1ull << 36;

    explicit HostileClient(const Daemon& daemon, const std::string& name = "hostile",
                           const codec::Knowledge& known = codec::own_knowledge());
    // Over an existing connection.
    HostileClient(const Daemon& daemon, const std::string& name, std::unique_ptr<transport::Connection> connection,
                  const codec::Knowledge& known = codec::own_knowledge());
    ~HostileClient();
    HostileClient(const HostileClient&) = delete;

    // ---- bytes and frames; false when the server does not accept them within `timeout`

    bool send_bytes(std::span<const std::byte> bytes, milliseconds timeout = milliseconds(10000));
    bool send_frame(wire::FrameType type, std::span<const std::byte> payload,
                    milliseconds timeout = milliseconds(10000));
    // A valid header of the next frame, which a test may then corrupt.
    wire::FrameHeader next_header(wire::FrameType type, std::span<const std::byte> payload);
    bool send_header(const wire::FrameHeader& header, std::span<const std::byte> payload);
    bool send_bulk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);

    // ---- commands

    // Appends the call to the frame that flush() sends; returns its number.
    template <class Call, class... Given>
    std::uint64_t add(Given... given) {
        return add_arguments<Call>(codec::Indices<Call>{}, given...);
    }
    std::uint64_t add_record(std::uint16_t opcode, std::span<const std::byte> body);
    bool flush(milliseconds timeout = milliseconds(10000));

    // Sends the call and waits for its result; nothing when the session ended instead.
    template <class Call, class... Given>
    std::optional<int> call(Given... given) {
        const std::uint64_t number = add<Call>(given...);
        flush();
        return result_of(number);
    }
    std::optional<Answer> answer_to(std::uint64_t number, milliseconds timeout = kTimeout);
    std::optional<int> result_of(std::uint64_t number, milliseconds timeout = kTimeout);
    // Makes a call that any session may make; true when it is answered.
    bool alive();

    // ---- setup

    template <class Handle>
    Handle mint() {
        return codec::from_wire<Handle>(codec::make_handle(codec::handle_kind_of<Handle>, next_serial_++));
    }
    CUcontext make_context();          // the primary context, current for the calls that follow
    CUcontext make_another_context();  // null where the call failed
    CUstream make_stream();
    CUevent make_event();
    CUdeviceptr make_slab(std::uint64_t bytes);

    // ---- the server's behaviour

    // Reads until the server closes the connection.
    bool ended(milliseconds timeout = milliseconds(5000));
    // Reads for `timeout` and keeps what arrives.
    void read_for(milliseconds timeout);
    bool wait_for_pull(std::uint64_t transfer, codec::PullNotice& pull);
    // The transfers whose data sent ahead the worker has reported as taken.
    [[nodiscard]] const std::vector<std::uint64_t>& ahead_taken() const { return ahead_taken_; }
    // The worker's notices about slabs prepared in advance.
    [[nodiscard]] const std::vector<codec::SlabPreparedNotice>& prepared() const { return prepared_; }
    [[nodiscard]] cli::SessionStatus session() const { return session_; }
    // From the Welcome.
    [[nodiscard]] const std::string& session_id() const { return session_id_; }
    [[nodiscard]] const std::vector<std::byte>& session_token() const { return session_token_; }
    [[nodiscard]] std::uint64_t bulk_bytes() const { return bulk_bytes_; }
    [[nodiscard]] std::size_t deferred_errors() const { return deferred_errors_.size(); }
    [[nodiscard]] std::vector<codec::DeferredErrorNotice> errors() const { return deferred_errors_; }
    // The notices about watched events.
    [[nodiscard]] const std::vector<codec::EventCompleteNotice>& ended_events() const { return ended_events_; }
    [[nodiscard]] const std::vector<codec::StreamCompleteNotice>& ended_streams() const { return ended_streams_; }
    [[nodiscard]] std::size_t notices(codec::NoticeType type) const {  // that have come
        const auto it = notices_.find(static_cast<std::uint16_t>(type));
        return it == notices_.end() ? 0 : it->second;
    }
    // What the server says that it knows.
    [[nodiscard]] const codec::Knowledge& server_knows() const { return server_knows_; }
    [[nodiscard]] std::uint64_t worker_resident_bytes() const;
    // The same once the worker's memory grows no more: by less than 2 MiB in 200 ms. Fails the test when it grows on.
    [[nodiscard]] std::uint64_t stable_resident_bytes() const;
    // True once the worker's threads that receive sleep: it has taken what was sent, and waits for more.
    [[nodiscard]] bool worker_waits() const;
    [[nodiscard]] auto worker_process_id() const { return session_.worker_process_id; }

    void leave();
    void stop_acknowledging() { acknowledging_ = false; }

    std::uint16_t flags = codec::kReplyWanted;
    std::uint64_t context = 0;
    std::uint32_t thread = 0;
    std::optional<std::uint64_t> next_number;  // overrides the number of the next command

  private:
    template <class Call, int... Index>
    std::uint64_t add_arguments(std::integer_sequence<int, Index...>, calls::ArgumentOf<Call, Index>... arguments) {
        const void* const addresses[] = {static_cast<const void*>(&arguments)..., nullptr};
        const std::size_t bytes = codec::command_bytes<Call>(addresses);
        std::vector<std::byte> body(bytes + 1);  // not empty, because gcc 12 warns of writes into an empty one
        codec::Writer out(body.data());
        codec::write_command<Call>(out, addresses);
        body.resize(bytes);
        return add_record(Call::kOpcode, body);
    }
    void greet(const std::string& name, const codec::Knowledge& known);
    bool read_frame(milliseconds timeout);
    void take_replies(std::span<const std::byte> payload);

    std::unique_ptr<transport::Connection> connection_;
    cli::SessionStatus session_;
    std::uint64_t sent_ = 0, received_ = 0, commands_ = 0, next_serial_ = 1, next_address_ = kWindowBase;
    std::uint64_t bulk_bytes_ = 0;
    bool over_ = false, acknowledging_ = true;
    std::string session_id_;
    std::vector<std::byte> session_token_;
    std::vector<std::byte> pending_;
    std::map<std::uint64_t, Answer> answers_;
    std::map<std::uint16_t, std::size_t> notices_;  // how many of each kind
    codec::Knowledge server_knows_;
    std::vector<codec::PullNotice> pulls_;
    std::vector<codec::SlabPreparedNotice> prepared_;
    std::vector<std::uint64_t> ahead_taken_;
    std::vector<codec::DeferredErrorNotice> deferred_errors_;
    std::vector<codec::EventCompleteNotice> ended_events_;
    std::vector<codec::StreamCompleteNotice> ended_streams_;
};

// A hostile client beside the bystander, with a context.
class HostileSession : public SessionTest {
  protected:
    void SetUp() override {
        SessionTest::SetUp();
        client_ = std::make_unique<HostileClient>(*daemon_);
        context_ = client_->make_context();
    }
    void TearDown() override {
        client_.reset();
        SessionTest::TearDown();
    }

    std::unique_ptr<HostileClient> client_;
    CUcontext context_ = nullptr;
};

// Whatever the client does, its worker logs why it ends, and its memory stays bounded.
class HostileTest : public HostileSession {
  protected:
    void SetUp() override {
        HostileSession::SetUp();
        before_ = client_->worker_resident_bytes();
    }
    void TearDown() override {
        // Every session ended with a logged reason; a worker that died of a signal would log none.
        EXPECT_EQ(server_log().find("signal"), std::string::npos);
        HostileSession::TearDown();
    }
    void expect_bounded(std::size_t bytes = std::size_t{1} << 30) {
        if (!client_->ended(milliseconds(0))) {
            EXPECT_LT(client_->worker_resident_bytes(), before_ + bytes);
        }
    }

    std::uint64_t before_ = 0;
};

}  // namespace gpupool::test
