// What is particular to TCP: addresses, connect timeouts, and handing descriptors to another process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "protocol/transport/tcp/connection.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"
#include "tests/conformance/transports.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using transport::Clock;
using transport::ConstBuffer;
using transport::Endpoint;
namespace tcp = transport::tcp;

TEST(Tcp, AdoptedDescriptorTakesOver) {
    auto [client, daemon] = plain_transports().front().connected_pair();
    ASSERT_GE(daemon->native_handle(), 0);
    const int descriptor = ::dup(daemon->native_handle());
    auto worker = tcp::adopt(descriptor);
    ASSERT_TRUE(worker.ok()) << worker.error().message;
    daemon.reset();  // must not end the stream for the worker
    expect_exchange(**worker, *client);
    expect_exchange(*client, **worker);
    EXPECT_EQ((*worker)->peer().rfind("tcp 127.0.0.1:", 0), 0u) << (*worker)->peer();
}

TEST(Tcp, AdoptRefusesDescriptorsThatAreNoConnection) {
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    EXPECT_FALSE(tcp::adopt(pipes[0]).ok());
    EXPECT_EQ(::fcntl(pipes[0], F_GETFD), -1) << "the descriptor was not closed";
    ::close(pipes[1]);
    EXPECT_FALSE(tcp::adopt(::socket(AF_INET, SOCK_STREAM, 0)).ok());
    EXPECT_FALSE(tcp::adopt(::socket(AF_INET, SOCK_DGRAM, 0)).ok());
    EXPECT_FALSE(tcp::adopt(-1).ok());
}

TEST(Tcp, AdoptTakesALocalSocket) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    auto one = tcp::adopt(ends[0]);
    auto other = tcp::adopt(ends[1]);
    ASSERT_TRUE(one.ok() && other.ok());
    expect_exchange(**one, **other);
}

TEST(Tcp, DescriptorsDoNotSurviveExec) {
    auto [client, server] = plain_transports().front().connected_pair();
    EXPECT_TRUE(::fcntl(client->native_handle(), F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE(::fcntl(server->native_handle(), F_GETFD) & FD_CLOEXEC);
}

// Of this process's own network namespace.
bool switch_loopback(bool on) {
    const int descriptor = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = static_cast<short>(on ? IFF_UP | IFF_RUNNING : 0);
    const bool done = ::ioctl(descriptor, SIOCSIFFLAGS, &request) == 0;
    ::close(descriptor);
    return done;
}

// Sends data after the network is gone, and waits for an answer. The child's exit status is the verdict.
enum Verdict { kNoticed, kNoNetwork, kWrong };
Verdict send_into_nothing(bool polls) {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return kNoNetwork;
    }
    if (!switch_loopback(true)) {
        return kNoNetwork;
    }
    auto [client, server] = plain_transports().front().connected_pair();
    auto impatient = tcp::adopt(::dup(client->native_handle()), 1200ms);
    if (!impatient) {
        return kWrong;
    }
    client = std::move(*impatient);
    expect_exchange(*client, *server);
    if (!switch_loopback(false)) {
        return kNoNetwork;
    }
    const auto data = pattern(100, 1);
    const ConstBuffer buffers[] = {data};
    if (!client->send(buffers)) {
        return kWrong;
    }
    std::vector<std::byte> received(data.size());
    for (;;) {
        const Status status = polls ? client->wait_arrival() : [&connection = *client, &received]() -> Status {
            const auto got = connection.receive(received);
            return got ? Status() : Status(got.error());
        }();
        if (!status) {
            return status.error().code == ErrorCode::timed_out ? kWrong : kNoticed;
        }
    }
}

// The kernel's default would give up only after a quarter of an hour.
TEST(Tcp, VanishedPeerIsDetected) {
    for (const bool polls : {false, true}) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(20);
            ::_exit(send_into_nothing(polls));
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status)) << "the child is still waiting";
        if (WEXITSTATUS(status) == kNoNetwork) {
            GTEST_SKIP() << "this test needs its own network namespace";
        }
        EXPECT_EQ(WEXITSTATUS(status), kNoticed) << (polls ? "by wait_arrival()" : "by receive()");
    }
}

TEST(Tcp, ListensOnIpv6) {
    auto listener = tcp::listen({"::1", 0});
    if (!listener) {
        GTEST_SKIP() << "no IPv6 here: " << listener.error().message;
    }
    auto endpoint = Endpoint::parse((*listener)->address());
    ASSERT_TRUE(endpoint.ok());
    EXPECT_NE(endpoint->port, 0);
    auto client = tcp::connect(*endpoint, Clock::now() + 5s);
    ASSERT_TRUE(client.ok()) << client.error().message;
    auto server = (*listener)->accept();
    ASSERT_TRUE(server.ok());
    expect_exchange(**client, **server);
}

TEST(Tcp, TriesEveryAddressOfAName) {
    auto listener = tcp::listen({"127.0.0.1", 0});  // "localhost" may be ::1 first
    ASSERT_TRUE(listener.ok());
    auto endpoint = Endpoint::parse((*listener)->address());
    ASSERT_TRUE(endpoint.ok());
    auto client = tcp::connect({"localhost", endpoint->port}, Clock::now() + 5s);
    ASSERT_TRUE(client.ok()) << client.error().message;
}

TEST(Tcp, RefusedConnectionIsReported) {
    std::uint16_t port = 0;
    {
        auto listener = tcp::listen({"127.0.0.1", 0});
        ASSERT_TRUE(listener.ok());
        port = Endpoint::parse((*listener)->address())->port;
    }
    const auto client = tcp::connect({"127.0.0.1", port}, Clock::now() + 5s);
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.error().code, ErrorCode::unavailable);
    EXPECT_NE(client.error().message.find("refused"), std::string::npos) << client.error().message;
}

TEST(Tcp, UnansweredConnectionTimesOut) {
    // A listener whose queue is full does not answer. The queue takes one connection more than the backlog, and none is
    // accepted.
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(descriptor, 0), 0);
    socklen_t bytes = sizeof(address);
    ASSERT_EQ(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    std::vector<std::unique_ptr<transport::Connection>> fillers;
    Result<std::unique_ptr<transport::Connection>> last = Error{};
    const auto before = Clock::now();
    for (int i = 0; i < 8; ++i) {
        last = tcp::connect({"127.0.0.1", ntohs(address.sin_port)}, Clock::now() + 200ms);
        if (!last) {
            break;
        }
        fillers.push_back(std::move(*last));
    }
    ::close(descriptor);
    ASSERT_FALSE(last.ok());
    EXPECT_EQ(last.error().code, ErrorCode::timed_out) << last.error().message;
    EXPECT_LT(Clock::now() - before, 3s);
}

TEST(Tcp, UnknownNameIsReported) {
    const auto client = tcp::connect({"no-such-host.invalid", 9470}, Clock::now() + 10s);
    ASSERT_FALSE(client.ok());
    EXPECT_NE(client.error().message.find("no-such-host.invalid"), std::string::npos);
}

TEST(Tcp, OccupiedPortIsReported) {
    auto first = tcp::listen({"127.0.0.1", 0});
    ASSERT_TRUE(first.ok());
    const auto second = tcp::listen(*Endpoint::parse((*first)->address()));
    ASSERT_FALSE(second.ok());
    EXPECT_NE(second.error().message.find("in use"), std::string::npos) << second.error().message;
}

}  // namespace
}  // namespace gpupool::testing
