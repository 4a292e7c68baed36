// Client and server of different versions: a session can use the calls and notices that both know, refuses other calls
// by name, and is refused if the core set is not agreed on. To imitate another version, a proxy changes the handshake
// of this version, or the test sends the client's messages itself.

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "common/version.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/listener.h"
#include "protocol/wire/handshake_io.h"
#include "tests/e2e/sessions/hostile_client.h"
#include "tests/e2e/sessions/proxy.h"
#include "tests/e2e/sessions/sessions.h"
#include "tests/support/text.h"

namespace gpupool::test {
namespace {

using codec::Knowledge;
using codec::Known;
using codec::NoticeType;

constexpr const char* kOtherVersion = "9.8.7";
constexpr std::uint16_t kUnknownCall = 1020, kUnknownOwnCall = 0xF07E, kUnknownNotice = 200;

void remove(std::vector<Known>& list, std::uint16_t number) {
    ASSERT_EQ(std::erase_if(list, [&](const Known& known) { return known.number == number; }), 1u);
}
Known& find(std::vector<Known>& list, std::uint16_t number) {
    return *std::find_if(list.begin(), list.end(), [&](const Known& known) { return known.number == number; });
}
void add(std::vector<Known>& list, std::uint16_t number) {
    list.push_back({number, 1, 0x12345678});
    std::sort(list.begin(), list.end(), [](const Known& a, const Known& b) { return a.number < b.number; });
}

// Another version: it lacks calls, has unknown ones, and has some with another layout or behaviour.
void make_other(Knowledge& known) {
    remove(known.calls, calls::cuMemPoolTrimTo::kOpcode);
    remove(known.calls, calls::gpLinkCreate::kOpcode);
    find(known.calls, calls::cuCtxGetLimit::kOpcode).layout ^= 1;
    find(known.calls, calls::cuMemGetAllocationGranularity::kOpcode).behaviour = 2;
    add(known.calls, kUnknownCall);
    add(known.calls, kUnknownOwnCall);
    remove(known.notices, static_cast<std::uint16_t>(NoticeType::output));
    add(known.notices, kUnknownNotice);
}

using Payload = std::vector<std::byte>;

template <class Root>
void change(Payload& payload, const std::function<void(typename Root::Builder)>& edit) {
    auto words = kj::heapArray<capnp::word>(payload.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), payload.data(), payload.size());
    capnp::FlatArrayMessageReader reader(words);
    capnp::MallocMessageBuilder builder;
    builder.setRoot(reader.getRoot<Root>());
    edit(builder.getRoot<Root>());
    const auto changed = capnp::messageToFlatArray(builder);
    const auto bytes = std::as_bytes(std::span(changed.asBytes().begin(), changed.asBytes().size()));
    payload.assign(bytes.begin(), bytes.end());
}

std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
    return std::as_bytes(std::span(data.begin(), data.size()));
}
capnp::Data::Reader data_of(const std::vector<Known>& list) {
    const auto bytes = codec::known_bytes(list);
    return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

template <class Builder>
void edit_lists(Builder message, const std::function<void(Knowledge&)>& edit) {
    auto known =
        codec::read_knowledge(bytes_of(message.asReader().getCalls()), bytes_of(message.asReader().getNotices()));
    ASSERT_TRUE(known);
    edit(*known);
    message.setCalls(data_of(known->calls));
    message.setNotices(data_of(known->notices));
}

// These change the handshake: the server seems to be of another version for the program, and the program for the
// server.
void make_client_other(Payload& hello, const std::function<void(Knowledge&)>& edit) {
    change<schema::Hello>(hello, [&](schema::Hello::Builder message) {
        message.getClient().setVersion(kOtherVersion);
        edit_lists(message.getPurpose().getSession(), edit);
    });
}
void make_server_other(Payload& welcome, const std::function<void(Knowledge&)>& edit) {
    change<schema::Welcome>(welcome, [&](schema::Welcome::Builder message) {
        message.setServerVersion(kOtherVersion);
        edit_lists(message, edit);
    });
}
FaultyProxy::Changes both_ways(const std::function<void(Knowledge&)>& edit) {
    return {[edit](Payload& hello) { make_client_other(hello, edit); },
            [edit](Payload& welcome) { make_server_other(welcome, edit); }};
}

// A refusal's text about two versions and the calls and notices that they do not agree on.
std::string disagreement(const char* client, const char* server, const char* calls) {
    return fmt::format(
        "this client is gpupool {} and the server is gpupool {}: they do not agree on {}; use a client of the server's "
        "version",
        client, server, calls);
}

class Versions : public SessionTest {
  protected:
    // Runs a program that must get no session; returns the message that it prints.
    std::string message_of_refusal(FaultyProxy::Changes changes) {
        FaultyProxy proxy(daemon_->address(), std::move(changes));
        Program program(*daemon_, session_program("versions"), {"GPUPOOL_SERVER=" + proxy.address()});
        EXPECT_NE(program.wait(), 0);
        EXPECT_TRUE(program.output().starts_with("failed:cuInit 100\n")) << program.output();
        std::string message = program.errors();
        EXPECT_EQ(test::count_of("\n", message), 1u) << message;
        EXPECT_TRUE(eventually([&] { return others().empty(); })) << "no session may remain";
        return message;
    }
};

// The calls that cannot be used in the tests below can be used if both ends have the same version.
TEST_F(Versions, SameVersionSupportsEveryCall) {
    TemporaryFolder folder;
    const std::string log = folder.path() + "/log";
    Program program(*daemon_, session_program("versions"), {"GPUPOOL_LOG=" + log, "GPUPOOL_LOG_LEVEL=warn"});
    ASSERT_TRUE(program.succeeds());
    for (const char* word : {"trim", "limit", "link", "granularity"}) {
        EXPECT_EQ(program.number(word), CUDA_SUCCESS) << word;
    }
    EXPECT_EQ(program.number("word"), 42);
    std::stringstream logged;
    logged << std::ifstream(log).rdbuf();
    EXPECT_EQ(logged.str().find("in common"), std::string::npos) << logged.str();
    EXPECT_EQ(server_log().find("in common"), std::string::npos) << server_log();
}

TEST_F(Versions, UnknownCallsAreRefusedByName) {
    FaultyProxy proxy(daemon_->address(), both_ways(make_other));
    TemporaryFolder folder;
    const std::string log = folder.path() + "/log";
    Program program(*daemon_, session_program("versions"),
                    {"GPUPOOL_SERVER=" + proxy.address(), "GPUPOOL_LOG=" + log, "GPUPOOL_LOG_LEVEL=warn"});
    ASSERT_TRUE(program.succeeds());
    for (const char* word : {"trim", "limit", "link", "granularity"}) {
        EXPECT_EQ(program.number(word), CUDA_ERROR_NOT_SUPPORTED) << word;
    }
    EXPECT_EQ(program.number("word"), 42);
    std::stringstream logged;
    logged << std::ifstream(log).rdbuf();
    const std::string text = logged.str();
    const std::string versions = fmt::format(" (client {}, server {})", version(), kOtherVersion);
    for (const char* line_of_call :
         {"cuMemPoolTrimTo is not supported in this session: unknown to the server",
          "cuCtxGetLimit is not supported in this session: different layout",
          "gpLinkCreate is not supported in this session: unknown to the server",
          "cuMemGetAllocationGranularity is not supported in this session: different behaviour"}) {
        EXPECT_EQ(test::count_of(line_of_call + versions, text), 1u) << line_of_call << '\n' << text;
    }
    const auto has = [](const std::string& where, const std::string& what) {
        EXPECT_NE(where.find(what), std::string::npos) << what << '\n' << where;
    };
    has(text, fmt::format("client {}, server {}: {} calls in common; not usable: ", version(), kOtherVersion,
                          codec::own_knowledge().calls.size() - 4));
    has(text, "notice output (unknown to the server), call 1020 (unknown to the client)");
    // The server logs the same about the client.
    has(server_log(), fmt::format("client {}, server {}: {} calls in common; not usable: ", kOtherVersion, version(),
                                  codec::own_knowledge().calls.size() - 4));
    has(server_log(), "cuMemPoolTrimTo (unknown to the client)");
    has(server_log(), "call 1020 (unknown to the server)");
}

// An application of the CUDA runtime.
TEST_F(Versions, ApplicationRunsWithAnotherVersion) {
    FaultyProxy proxy(daemon_->address(), both_ways(make_other));
    Program program(*daemon_, {std::string(TEST_PROGRAMS) + "/vector_add"}, {"GPUPOOL_SERVER=" + proxy.address()});
    EXPECT_TRUE(program.succeeds());
    EXPECT_EQ(program.errors(), "");
}

TEST_F(Versions, ServerRefusesClientWithoutCoreSet) {
    const std::string message = message_of_refusal({[](Payload& hello) {
                                                        make_client_other(hello, [](Knowledge& known) {
                                                            find(known.calls, calls::gpLaunch::kOpcode).layout ^= 1;
                                                            remove(known.calls, calls::cuStreamCreate::kOpcode);
                                                        });
                                                    },
                                                    {}});
    EXPECT_NE(message.find(disagreement(kOtherVersion, version(),
                                        "cuStreamCreate (unknown to the client), gpLaunch (different layout)")),
              std::string::npos)
        << message;
    EXPECT_NE(server_log().find("the session is refused: this client is gpupool"), std::string::npos);
}

TEST_F(Versions, ClientRefusesServerWithoutCoreSet) {
    const std::string message =
        message_of_refusal({{}, [](Payload& welcome) {
                                make_server_other(welcome, [](Knowledge& known) {
                                    find(known.calls, calls::gpLaunch::kOpcode).behaviour = 2;
                                    remove(known.notices, static_cast<std::uint16_t>(NoticeType::pull));
                                });
                            }});
    EXPECT_NE(message.find(disagreement(version(), kOtherVersion,
                                        "gpLaunch (different behaviour), notice pull (unknown to the server)")),
              std::string::npos)
        << message;
}

TEST_F(Versions, AnotherProtocolVersionIsRefused) {
    const std::uint32_t own = schema::PROTOCOL_VERSION;
    const std::string by_server = message_of_refusal(
        {[](Payload& hello) {
             change<schema::Hello>(hello, [](schema::Hello::Builder message) { message.setProtocolVersion(99); });
         },
         {}});
    EXPECT_NE(by_server.find(fmt::format("this server speaks gpupool protocol {}, the client speaks 99", own)),
              std::string::npos)
        << by_server;
    const std::string by_client = message_of_refusal(
        {{}, [](Payload& welcome) {
             change<schema::Welcome>(welcome, [](schema::Welcome::Builder message) { message.setProtocolVersion(99); });
         }});
    EXPECT_NE(by_client.find("speaks gpupool protocol 99"), std::string::npos) << by_client;
    EXPECT_NE(by_client.find(fmt::format("speaks {}: install", own)), std::string::npos) << by_client;
}

TEST_F(Versions, AnotherFrameFormatIsRefused) {
    auto listener = *transport::tcp::listen(*transport::Endpoint::parse("127.0.0.1:0"));
    std::thread server([&] {
        auto connection = listener->accept();
        ASSERT_TRUE(connection);
        std::array<std::byte, wire::kHeaderBytes> head;
        wire::encode({}, head);
        head[3] = std::byte{'7'};
        const transport::ConstBuffer buffer(head);
        EXPECT_TRUE((*connection)->send({&buffer, 1}));
        (void)wire::read_frame(**connection, wire::kMaxPayloadBytes, milliseconds(10000));
    });
    Program program(*daemon_, session_program("versions"), {"GPUPOOL_SERVER=" + listener->address()});
    EXPECT_NE(program.wait(), 0);
    server.join();
    EXPECT_NE(program.errors().find("format 7, this side knows format 1"), std::string::npos) << program.errors();
}

// ---- tests that send the client's messages themselves

TEST_F(Versions, WelcomeListsCallsAndNotices) {
    HostileClient client(*daemon_);
    EXPECT_EQ(client.server_knows().calls, codec::own_knowledge().calls);
    EXPECT_EQ(client.server_knows().notices, codec::own_knowledge().notices);
}

TEST_F(Versions, WorkerServesOnlyAgreedCalls) {
    Knowledge known = codec::own_knowledge();
    make_other(known);
    HostileClient client(*daemon_, "other", known);
    client.make_context();
    std::size_t bytes = 0;
    EXPECT_EQ(client.call<calls::cuCtxGetLimit>(&bytes, CU_LIMIT_STACK_SIZE), CUDA_ERROR_NOT_SUPPORTED);
    // The worker must not read the arguments of a call with another layout.
    const std::vector<std::byte> nonsense(24, std::byte{0xff});
    for (const std::uint16_t opcode : {calls::cuCtxGetLimit::kOpcode, calls::cuMemPoolTrimTo::kOpcode,
                                       calls::gpLinkCreate::kOpcode, kUnknownCall, kUnknownOwnCall}) {
        const auto number = client.add_record(opcode, nonsense);
        client.flush();
        EXPECT_EQ(client.result_of(number), CUDA_ERROR_NOT_SUPPORTED) << opcode;
    }
    EXPECT_NE(server_log().find("asked for cuCtxGetLimit, which client and server have not agreed on"),
              std::string::npos);
    EXPECT_TRUE(client.alive());
    client.make_stream();
    client.make_slab(2u << 20);
    // If the call is agreed on, the worker serves it, and ends the session for malformed arguments.
    HostileClient same(*daemon_, "same");
    same.make_context();
    EXPECT_EQ(same.call<calls::cuCtxGetLimit>(&bytes, CU_LIMIT_STACK_SIZE), CUDA_SUCCESS);
    same.add_record(calls::cuCtxGetLimit::kOpcode, std::vector<std::byte>(8, std::byte{0xff}));
    same.flush();
    EXPECT_TRUE(same.ended());
}

std::optional<int> call_without_arguments(HostileClient& client, std::uint16_t opcode) {
    const std::uint64_t number = client.add_record(opcode, {});
    client.flush();
    return client.result_of(number);
}

// The worker sends traces in notices, and not every client knows these.
TEST_F(Versions, WorkerSendsNoUnknownNotice) {
    const auto traced = [&](const Knowledge& known) {
        HostileClient client(*daemon_, "traced", known);
        client.make_context();
        EXPECT_EQ(call_without_arguments(client, calls::gpTraceStart::kOpcode), CUDA_SUCCESS);
        const CUstream stream = client.make_stream();
        const CUdeviceptr slab = client.make_slab(2u << 20);
        EXPECT_EQ(client.call<calls::cuMemsetD8Async>(slab, static_cast<unsigned char>(1), std::size_t{4096}, stream),
                  CUDA_SUCCESS);
        EXPECT_EQ(client.call<calls::cuStreamSynchronize>(stream), CUDA_SUCCESS);
        EXPECT_EQ(call_without_arguments(client, calls::gpTraceFlush::kOpcode), CUDA_SUCCESS);
        EXPECT_TRUE(client.alive());
        return client.notices(NoticeType::trace_records);
    };
    EXPECT_GT(traced(codec::own_knowledge()), 0u);
    Knowledge known = codec::own_knowledge();
    remove(known.notices, static_cast<std::uint16_t>(NoticeType::trace_records));
    EXPECT_EQ(traced(known), 0u);
}

TEST_F(Versions, InvalidListsAreRefused) {
    const auto bytes = [](const std::vector<Known>& list) {
        const auto view = codec::known_bytes(list);
        return std::vector<std::byte>(view.begin(), view.end());
    };
    const Knowledge& own = codec::own_knowledge();
    const auto expect_refused = [&](std::vector<std::byte> calls, std::vector<std::byte> notices, const char* why) {
        Client client(daemon_->address());
        client.send_hello({.calls = std::move(calls), .notices = std::move(notices)});
        const std::string message = client.refusal(milliseconds(30000));
        EXPECT_NE(message.find(why), std::string::npos) << why << ": " << message;
        EXPECT_TRUE(client.ended(milliseconds(10000)));
    };
    auto unsorted = own.calls;
    std::swap(unsorted.front(), unsorted.back());
    auto doubled = own.calls;
    doubled.insert(doubled.begin(), doubled.front());
    std::vector<Known> long_list;
    for (std::uint16_t number = 0; number <= codec::kMaxKnown; ++number) {
        long_list.push_back({number, 1, 1});
    }
    auto cut = bytes(own.calls);
    cut.pop_back();
    expect_refused(bytes(unsorted), bytes(own.notices), "not in the order");
    expect_refused(bytes(doubled), bytes(own.notices), "not in the order");
    expect_refused(bytes(long_list), bytes(own.notices), "more than 4096 entries");
    expect_refused(cut, bytes(own.notices), "ends within an entry");
    expect_refused(bytes(own.calls), bytes(doubled), "not in the order");
    expect_refused({}, {}, "they do not agree on");
    expect_refused(bytes(own.calls), {}, "they do not agree on notice");
}

}  // namespace
}  // namespace gpupool::test
