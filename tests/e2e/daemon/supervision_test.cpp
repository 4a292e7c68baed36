// The parts between daemon and worker, without processes: messages, the runtime directory, admission, the probe.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "protocol/schema/supervision.capnp.h"
#include "protocol/transport/tcp/connection.h"
#include "server/daemon/admission.h"
#include "server/daemon/supervisor.h"
#include "server/daemon/worker_process.h"
#include "server/supervision/message_socket.h"
#include "server/supervision/runtime_directory.h"
#include "server/supervision/worker_link.h"
#include "tests/e2e/daemon/harness.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::test {
namespace {

using supervision::MessageSocket;

struct Ends {
    MessageSocket first;
    MessageSocket second;
    Ends() {
        UniqueFd one;
        UniqueFd two;
        EXPECT_TRUE(supervision::make_socket_pair(one, two));
        first = MessageSocket(std::move(one));
        second = MessageSocket(std::move(two));
    }
};

void send_stop(MessageSocket& socket, const char* text, const std::vector<int>& descriptors = {}) {
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::ToWorker>().setStop(text);
    const auto sent = socket.send(message, descriptors);
    EXPECT_TRUE(sent) << (sent ? "" : sent.error().message);
}

std::string stop_text(const supervision::Message& message) {
    capnp::FlatArrayMessageReader reader(message.words);
    return reader.getRoot<schema::ToWorker>().getStop().cStr();
}

// A worker that a client has taken over must not hold up the daemon.
TEST(MessageSocketTest, ASenderThatMayNotWaitGivesUpAtOnce) {
    UniqueFd one, two;
    ASSERT_TRUE(supervision::make_socket_pair(one, two));
    MessageSocket sender(std::move(one), std::chrono::milliseconds(0)), reader(std::move(two));
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::ToWorker>().setStop(std::string(10000, 'x').c_str());
    Status sent;
    std::size_t count = 0;
    while (count < 1000 && (sent = sender.send(message))) {
        ++count;
    }
    ASSERT_FALSE(sent);
    EXPECT_EQ(sent.error().code, ErrorCode::timed_out);
    EXPECT_GE(count, 15u) << "an Assignment with the largest Hello fits without a reader";
    std::size_t received = 0;
    for (auto messages = reader.receive(); messages && !messages->empty(); messages = reader.receive()) {
        received += messages->size();
    }
    EXPECT_EQ(received, count);
    EXPECT_EQ(sender.send(message).error().code, ErrorCode::closed) << "a message may have been cut";
}

TEST(MessageSocketTest, CarriesMessagesAndDescriptors) {
    Ends ends;
    int pipe_ends[2];
    ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    send_stop(ends.first, "none");  // arrives in the same read as the next message
    send_stop(ends.first, "one", {pipe_ends[1], pipe_ends[0]});
    ::close(pipe_ends[1]);
    send_stop(ends.first, "two");
    auto messages = ends.second.receive();
    ASSERT_TRUE(messages);
    ASSERT_EQ(messages->size(), 3u);
    EXPECT_EQ(stop_text((*messages)[0]), "none");
    EXPECT_EQ(stop_text((*messages)[1]), "one");
    EXPECT_EQ(stop_text((*messages)[2]), "two");
    EXPECT_TRUE((*messages)[0].descriptors.empty());
    EXPECT_TRUE((*messages)[2].descriptors.empty());
    const auto& came = (*messages)[1].descriptors;
    ASSERT_EQ(came.size(), 2u);
    ASSERT_EQ(::write(came[0].get(), "x", 1), 1);
    char byte = 0;
    EXPECT_EQ(::read(came[1].get(), &byte, 1), 1);
    for (const auto& descriptor : came) {
        EXPECT_NE(::fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
    }
    ::close(pipe_ends[0]);
}

TEST(MessageSocketTest, ReturnsMessagesBeforeTheEndThenTheEnd) {
    Ends ends;
    send_stop(ends.first, "last");
    ends.first.close();
    const auto messages = ends.second.receive();
    ASSERT_TRUE(messages);
    ASSERT_EQ(messages->size(), 1u);
    const auto end = ends.second.receive();
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, ErrorCode::closed);
}

TEST(MessageSocketTest, WaitsForTheRestOfAMessage) {
    Ends ends;
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::ToWorker>().setStop("slow");
    const auto words = capnp::messageToFlatArray(message);
    const auto length = static_cast<std::uint32_t>(words.asBytes().size());
    ASSERT_EQ(::write(ends.first.descriptor(), &length, sizeof(length)), 4);
    EXPECT_TRUE(ends.second.receive()->empty());
    ASSERT_EQ(::write(ends.first.descriptor(), words.begin(), 9), 9);
    EXPECT_TRUE(ends.second.receive()->empty());
    ASSERT_EQ(::write(ends.first.descriptor(), words.asBytes().begin() + 9, length - 9), static_cast<int>(length) - 9);
    EXPECT_EQ(stop_text(ends.second.receive()->at(0)), "slow");
}

TEST(MessageSocketTest, RefusesImpossibleLengths) {
    for (const std::uint32_t length : {0u, 7u, 0xfffffff8u, (1u << 20) + 8}) {
        Ends ends;
        ASSERT_EQ(::write(ends.first.descriptor(), &length, sizeof(length)), 4);
        const auto refused = ends.second.receive();
        ASSERT_FALSE(refused) << length;
        EXPECT_NE(refused.error().message.find(std::to_string(length)), std::string::npos);
    }
}

// The link's thread repeats its reports by itself; they do not depend on how often the reader reads.
TEST(WorkerLinkTest, RepeatsItsReports) {
    UniqueFd ours, theirs, client[2];
    ASSERT_TRUE(supervision::make_socket_pair(ours, theirs));
    ASSERT_TRUE(supervision::make_socket_pair(client[0], client[1]));
    MessageSocket daemon(std::move(ours));
    capnp::MallocMessageBuilder message;
    auto assignment = message.initRoot<schema::ToWorker>().initAssignment();
    assignment.setSessionId("reports");
    const std::string name(3000, 'n');
    assignment.initHello().initClient().setProcessName(name);
    ASSERT_TRUE(daemon.send(message, std::array{client[1].get()}));

    supervision::WorkerLimits limits;
    limits.report_interval = std::chrono::hours(1);
    limits.least_between_reports = std::chrono::milliseconds(0);
    auto link = supervision::WorkerLink::open(theirs.release(), limits);
    ASSERT_TRUE(link) << link.error().message;
    std::string stopped;
    (*link)->start({.stop = [&](const std::string& reason) { stopped = reason; }, .client_gone = {}, .lane = {}});
    constexpr std::uint64_t kReports = 4000;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    std::uint64_t reported = 0;
    for (std::uint64_t bytes = 1; bytes <= kReports && std::chrono::steady_clock::now() < deadline; ++bytes) {
        (*link)->set_memory_used({bytes});
        while (reported < bytes && std::chrono::steady_clock::now() < deadline) {
            auto messages = daemon.receive();
            ASSERT_TRUE(messages) << messages.error().message;
            for (const auto& report : *messages) {
                capnp::FlatArrayMessageReader reader(report.words);
                const auto content = reader.getRoot<schema::Report>();
                ASSERT_EQ(content.getClient().getProcessName().size(), name.size());
                reported = content.getMemoryUsed().size() == 0 ? 0 : content.getMemoryUsed()[0];
            }
        }
    }
    EXPECT_EQ(reported, kReports);
    link->reset();
    EXPECT_EQ(stopped, "");
}

// A worker in stock checks its context while it waits, and reports once that it has given it up.
TEST(WorkerLinkTest, InStockReportsTheLossOfItsContext) {
    UniqueFd ours, theirs, client[2];
    ASSERT_TRUE(supervision::make_socket_pair(ours, theirs));
    ASSERT_TRUE(supervision::make_socket_pair(client[0], client[1]));
    MessageSocket daemon(std::move(ours));
    capnp::MallocMessageBuilder preparation;
    preparation.initRoot<schema::ToWorker>().initPrepare().setSessionId("in stock");
    ASSERT_TRUE(daemon.send(preparation));
    supervision::WorkerLimits limits;
    limits.report_interval = std::chrono::milliseconds(5);
    auto link = supervision::WorkerLink::open(theirs.release(), limits);
    ASSERT_TRUE(link) << link.error().message;
    ASSERT_TRUE((*link)->preparation());

    std::atomic<int> polls{0};
    Status assigned = Error{ErrorCode::internal, "not yet"};
    std::thread worker([&] { assigned = (*link)->await_assignment([&] { return ++polls < 3; }); });
    std::vector<bool> reported;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (reported.size() < 2 && std::chrono::steady_clock::now() < deadline) {
        auto messages = daemon.receive();
        ASSERT_TRUE(messages) << messages.error().message;
        for (const auto& report : *messages) {
            capnp::FlatArrayMessageReader reader(report.words);
            EXPECT_EQ(std::string(reader.getRoot<schema::Report>().getState().cStr()), "stock");
            reported.push_back(reader.getRoot<schema::Report>().getContext());
        }
    }
    capnp::MallocMessageBuilder assignment;
    assignment.initRoot<schema::ToWorker>().initAssignment().setSessionId("in stock");
    ASSERT_TRUE(daemon.send(assignment, std::array{client[1].get()}));
    worker.join();
    EXPECT_TRUE(assigned);
    EXPECT_EQ(reported, (std::vector<bool>{true, false}));
    EXPECT_EQ(polls, 3) << "a released context is not polled";
}

TEST(RefusalTest, IsDroppedWhenThePeerDoesNotReadIt) {
    const auto [peer, ours] = transport::inproc::make_pair(16);
    daemon::send_refused(*ours, {schema::Refused::Reason::INTERNAL, std::string(1000, 'x')});
    std::byte byte;
    EXPECT_TRUE(peer->receive({&byte, 1})) << "the part that fitted arrives";
}

daemon::Admission admission_of(const HelloOptions& options) {
    auto verdict = daemon::examine_hello(hello_payload(options), {});
    return std::move(std::get<daemon::Admission>(verdict));
}

// A supervisor in this process, with real worker processes.
class SupervisorTest : public ::testing::Test {
  protected:
    SupervisorTest() {
        config_.worker_silence_timeout = milliseconds(1000);
        daemon::SupervisorParts parts;
        parts.worker = STAND_IN_WORKER;
        parts.driver.kind = "software";
        parts.isolation = &*isolation_;
        parts.supervision_path = folder_.path() + "/supervision.sock";
        EXPECT_TRUE(supervision::make_socket_pair(lifeline_, parts.lifeline));
        supervisor_ = std::make_unique<daemon::Supervisor>(loop_, background_, config_, *tenancy_, std::move(parts));
        reception_ = std::make_unique<daemon::Reception>(loop_, config_, daemon::Identify(), *supervisor_);
        thread_ = std::thread([this] { supervisor_->run(*reception_); });
    }
    ~SupervisorTest() override {
        lifeline_.reset();
        thread_.join();
    }
    // Calls `body` on the supervisor's thread and waits for it.
    void call(const std::function<void()>& body) {
        std::promise<void> done;
        loop_.post([&] {
            body();
            done.set_value();
        });
        done.get_future().wait();
    }
    // The connection of a session's client, after its Welcome.
    std::unique_ptr<transport::Connection> open_session() {
        UniqueFd ours;
        UniqueFd theirs;
        EXPECT_TRUE(supervision::make_socket_pair(ours, theirs));
        call([&] {
            auto connection = *transport::tcp::adopt(theirs.release());
            auto admission = admission_of({});
            const auto verdict = supervisor_->admit(connection, admission, 1);
            EXPECT_TRUE(std::holds_alternative<daemon::Admitted>(verdict));
        });
        auto client = *transport::tcp::adopt(ours.release());
        const auto welcome = wire::read_answer(*client, wire::kMaxPayloadBytes,
                                               transport::Clock::now() + milliseconds(30000), milliseconds(30000));
        EXPECT_TRUE(welcome && welcome->type == wire::FrameType::welcome);
        return client;
    }

    TemporaryFolder folder_;
    daemon::Config config_;
    UniqueFd lifeline_;
    daemon::Loop loop_;
    daemon::Background background_{loop_};
    std::unique_ptr<daemon::Tenancy> tenancy_ = *daemon::Tenancy::open(loop_, background_, config_);
    Result<daemon::Isolation> isolation_ = daemon::Isolation::decide(config_);
    std::unique_ptr<daemon::Supervisor> supervisor_;
    std::unique_ptr<daemon::Reception> reception_;
    std::thread thread_;
};

// The worker, a process of its own, has time to report several times while the loop sleeps, and only the loop reads
// these reports.
TEST_F(SupervisorTest, OwnDelayDoesNotCountAsTheWorkersSilence) {
    const auto client = open_session();
    call([&] { std::this_thread::sleep_for(config_.worker_silence_timeout * 3 / 2); });
    call([] {});  // after the check for silent workers
    client->set_receive_deadline(transport::Clock::now() + milliseconds(300));
    std::byte byte;
    const auto end = client->receive({&byte, 1});
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, ErrorCode::timed_out) << "the session must continue";
}

TEST(RuntimeDirectoryTest, IsPrivateAndHasOneOwner) {
    TemporaryFolder folder;
    const auto root = folder.path() + "/run";
    auto first = supervision::RuntimeDirectory::claim(root, "1234");
    ASSERT_TRUE(first) << first.error().message;
    struct stat facts {};
    ASSERT_EQ(::stat(first->path().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0711u) << "for workers, which are other users and get a descriptor of it";
    ASSERT_EQ(::stat(root.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700u);
    EXPECT_FALSE(supervision::RuntimeDirectory::claim(root, "1234"));
    EXPECT_TRUE(supervision::RuntimeDirectory::claim(root, "1235"));
    EXPECT_FALSE(supervision::connect_supervision(first->supervision_path()));
    const auto listener = first->listen();
    ASSERT_TRUE(listener);
    EXPECT_TRUE(supervision::connect_supervision(first->supervision_path()));
    const auto opened = first->open();
    ASSERT_TRUE(opened);
    EXPECT_TRUE(supervision::connect_supervision("/nowhere", opened->get())) << "by a descriptor of the directory";
    first->remove();
    EXPECT_NE(::stat((root + "/1234").c_str(), &facts), 0);
    EXPECT_TRUE(supervision::RuntimeDirectory::claim(root, "1234"));
}

// The directory may be /tmp or a home directory.
TEST(RuntimeDirectoryTest, KeepsTheModeOfAnExistingDirectory) {
    TemporaryFolder folder;
    const auto others = folder.path() + "/shared", ours = folder.path() + "/gpupool-run";
    for (const auto& path : {others, ours}) {
        ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
        ASSERT_EQ(::chmod(path.c_str(), 01777), 0);
    }
    const auto refused = supervision::RuntimeDirectory::claim(others, "1234");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("other users may enter " + others), std::string::npos)
        << refused.error().message;
    struct stat facts {};
    ASSERT_EQ(::stat(others.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 01777u);
    EXPECT_TRUE(supervision::RuntimeDirectory::claim(ours, "1234")) << "a directory named gpupool-* is made private";
    ASSERT_EQ(::stat(ours.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0700u);
}

TEST(RuntimeDirectoryTest, RefusesUnusablePaths) {
    TemporaryFolder folder;
    ASSERT_EQ(::symlink("/tmp", (folder.path() + "/link").c_str()), 0);
    EXPECT_FALSE(supervision::RuntimeDirectory::claim(folder.path() + "/link", "1"));
    EXPECT_FALSE(supervision::RuntimeDirectory::claim(folder.path() + "/no/such/parent", "1"));
    const auto too_long = supervision::RuntimeDirectory::claim(folder.path() + "/" + std::string(90, 'x'), "1");
    ASSERT_FALSE(too_long);
    EXPECT_NE(too_long.error().message.find("too long"), std::string::npos);
}

TEST(AdmissionTest, WorkerReceivesNoCredentialAndOnlyHarmlessVariables) {
    const auto payload = hello_payload({.process_name = "a\nb",
                                        .token = "first-token",
                                        .environment = {{"CUDA_MODULE_LOADING", "LAZY"},
                                                        {"CUDA_INJECTION64_PATH", "/tmp/evil.so"},
                                                        {"LD_PRELOAD", "/tmp/evil.so"},
                                                        {"CUDA_CACHE_PATH", "/"},
                                                        {"CUDA_LAUNCH_BLOCKING", std::string(5000, '1')}}});
    auto verdict = daemon::examine_hello(payload, [](std::string_view token) {
        return token == "first-token" ? std::optional(policy::Identity{policy::Role::tenant, "first"}) : std::nullopt;
    });
    ASSERT_TRUE(std::holds_alternative<daemon::Admission>(verdict));
    capnp::MallocMessageBuilder message;
    daemon::copy_hello(std::get<daemon::Admission>(verdict), message.initRoot<schema::Hello>());
    const auto seen = message.getRoot<schema::Hello>().asReader();
    EXPECT_EQ(seen.getToken().size(), 0u);
    EXPECT_STREQ(seen.getClient().getProcessName().cStr(), "a?b");
    const auto environment = seen.getPurpose().getSession().getEnvironment();
    ASSERT_EQ(environment.size(), 1u);
    EXPECT_STREQ(environment[0].getName().cStr(), "CUDA_MODULE_LOADING");
    EXPECT_STREQ(environment[0].getValue().cStr(), "LAZY");
}

TEST(AdmissionTest, TheWorkerSeesWhatTheClientKnows) {
    const std::vector<std::byte> some_calls(24, std::byte{7}), some_notices(5, std::byte{8});
    auto verdict = daemon::examine_hello(hello_payload({.calls = some_calls, .notices = some_notices}), {});
    ASSERT_TRUE(std::holds_alternative<daemon::Admission>(verdict));
    capnp::MallocMessageBuilder message;
    daemon::copy_hello(std::get<daemon::Admission>(verdict), message.initRoot<schema::Hello>());
    const auto session = message.getRoot<schema::Hello>().asReader().getPurpose().getSession();
    const auto bytes = [](capnp::Data::Reader data) {
        const auto read = std::as_bytes(std::span(data.begin(), data.size()));
        return std::vector<std::byte>(read.begin(), read.end());
    };
    EXPECT_EQ(bytes(session.getCalls()), some_calls);
    EXPECT_EQ(bytes(session.getNotices()), some_notices);
}

TEST(AdmissionTest, OversizedListOfCallsIsRefused) {
    const auto verdict = daemon::examine_hello(hello_payload({.calls = std::vector<std::byte>(200u << 10)}), {});
    ASSERT_TRUE(std::holds_alternative<daemon::Refusal>(verdict));
    EXPECT_NE(std::get<daemon::Refusal>(verdict).message.find("too large"), std::string::npos);
}

TEST(AdmissionTest, EveryTruncationOfAHelloIsRefused) {
    const auto payload = hello_payload({});
    for (std::size_t bytes = 0; bytes < payload.size(); ++bytes) {
        const auto verdict = daemon::examine_hello(std::span(payload).first(bytes), daemon::Identify());
        EXPECT_TRUE(std::holds_alternative<daemon::Refusal>(verdict)) << bytes;
    }
}

TEST(ProbeTest, ReadsTheWorkersAnswer) {
    const auto facts = daemon::parse_probe(
        R"({"driver": "/x/libcuda.so.1", "driver_version": 13000,
            "devices": [{"name": "H200", "uuid": "GPU-1", "memory_total": 5}]})");
    ASSERT_TRUE(facts) << facts.error().message;
    EXPECT_EQ(facts->path, "/x/libcuda.so.1");
    ASSERT_EQ(facts->devices.size(), 1u);
    EXPECT_EQ(facts->devices[0].memory_total_bytes, 5u);
    for (const char* bad : {"", "{", "[]", "{}", R"({"driver": 3, "driver_version": 1, "devices": []})",
                            R"({"driver": "x", "driver_version": 1, "devices": [{}]})"}) {
        EXPECT_FALSE(daemon::parse_probe(bad)) << bad;
    }
    EXPECT_EQ(daemon::parse_probe(R"({"error": "nothing there"})").error().message, "nothing there");
}

}  // namespace
}  // namespace gpupool::test
