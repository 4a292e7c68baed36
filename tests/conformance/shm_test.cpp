// What is particular to shared memory: socket paths, handing descriptors to another process, and a peer that can write
// anywhere in the rings.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "protocol/transport/open.h"
#include "protocol/transport/shm/arrival.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/connector.h"
#include "protocol/transport/shm/listener.h"
#include "protocol/transport/shm/local_socket.h"
#include "protocol/transport/shm/memory.h"
#include "protocol/transport/tcp/addresses.h"
#include "protocol/transport/tcp/listener.h"
#include "tests/conformance/transports.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using transport::Choice;
using transport::Clock;
using transport::ConstBuffer;
using transport::Endpoint;
namespace shm = transport::shm;

Ends shm_pair() {
    const auto all = plain_transports();
    return std::find_if(all.begin(), all.end(), [](const auto& one) { return one.name == "shm"; })->connected_pair();
}

std::vector<UniqueFd> copies_of(const std::vector<int>& descriptors) {
    std::vector<UniqueFd> copies;
    for (const int descriptor : descriptors) {
        copies.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    }
    return copies;
}

class Folder {
  public:
    Folder() {
        char name[] = "/tmp/gpupool-shm-XXXXXX";
        path_ = ::mkdtemp(name);
    }
    ~Folder() { ::rmdir(path_.c_str()); }
    [[nodiscard]] std::string socket() const { return path_ + "/socket"; }

  private:
    std::string path_;
};

bool exists(const std::string& path) {
    struct stat facts {};
    return ::lstat(path.c_str(), &facts) == 0;
}

TEST(Shm, AnotherProcessTakesOver) {
    auto [client, daemon] = shm_pair();
    expect_exchange(*client, *daemon);  // the rings exist and have been used
    expect_exchange(*daemon, *client);
    auto worker = transport::adopt(copies_of(daemon->descriptors()));
    ASSERT_TRUE(worker.ok()) << worker.error().message;
    const std::string peer = daemon->peer();
    daemon.reset();  // must not end the stream for the worker
    expect_exchange(*client, **worker);
    expect_exchange(**worker, *client);
    EXPECT_EQ((*worker)->peer(), peer);
    EXPECT_EQ(peer, "shm pid " + std::to_string(::getpid()) + " uid " + std::to_string(::geteuid()));
}

TEST(Shm, DescriptorsDoNotSurviveExec) {
    auto [client, server] = shm_pair();
    expect_exchange(*client, *server);
    for (auto* end : {client.get(), server.get()}) {
        const auto descriptors = end->descriptors();
        EXPECT_EQ(descriptors.size(), 4u);
        for (const int descriptor : descriptors) {
            EXPECT_TRUE(::fcntl(descriptor, F_GETFD) & FD_CLOEXEC);
        }
    }
}

TEST(Shm, GivesDescriptorsBeforeTheBytesBehindThem) {
    auto [client, server] = shm_pair();
    ASSERT_TRUE(client->can_give());
    expect_exchange(*client, *server);
    auto worker = transport::adopt(copies_of(server->descriptors()));
    ASSERT_TRUE(worker.ok());
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ASSERT_TRUE(client->give(ends[1], 7).ok());
    ASSERT_TRUE(client->give(ends[1], 8).ok());
    ASSERT_TRUE(client->give(ends[1], 9).ok());
    expect_exchange(*client, **worker);
    const auto seventh = (*worker)->take_given(7);
    ASSERT_TRUE(seventh.ok()) << seventh.error().message;
    ASSERT_EQ(::write(seventh->get(), "x", 1), 1);
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    EXPECT_TRUE(::fcntl(seventh->get(), F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE((*worker)->take_given(9).ok()) << "descriptor 8 was not received";
    EXPECT_FALSE((*worker)->take_given(10).ok()) << "there is none, and it does not wait";
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST(Shm, ListensAtAPathAndRemovesIt) {
    const Folder folder;
    {
        auto listener = transport::listen(*Endpoint::parse("unix:" + folder.socket()));
        ASSERT_TRUE(listener.ok()) << listener.error().message;
        EXPECT_EQ((*listener)->address(), "unix:" + folder.socket());
        auto client =
            transport::connect(*Endpoint::parse((*listener)->address()), Choice::automatic, Clock::now() + 5s);
        ASSERT_TRUE(client.ok()) << client.error().message;
        auto server = (*listener)->accept();
        ASSERT_TRUE(server.ok());
        expect_exchange(**client, **server);
        const auto second = shm::listen_at_path(folder.socket());
        ASSERT_FALSE(second.ok());
        EXPECT_NE(second.error().message.find("another process listens"), std::string::npos) << second.error().message;
        EXPECT_TRUE(exists(folder.socket()));
    }
    EXPECT_FALSE(exists(folder.socket()));
}

TEST(Shm, ReplacesAStaleSocket) {
    const Folder folder;
    const auto address = shm::LocalAddress::of_path(folder.socket());
    {
        const UniqueFd left(::socket(AF_UNIX, SOCK_STREAM, 0));
        ASSERT_EQ(::bind(left.get(), address->get(), address->bytes), 0);
    }
    ASSERT_TRUE(exists(folder.socket()));
    const auto listener = shm::listen_at_path(folder.socket());
    EXPECT_TRUE(listener.ok()) << listener.error().message;
    EXPECT_TRUE(shm::connect_to_path(folder.socket()).ok());
}

TEST(Shm, KeepsAFileThatIsNoSocket) {
    const Folder folder;
    ::close(::open(folder.socket().c_str(), O_CREAT | O_WRONLY, 0600));
    EXPECT_FALSE(shm::listen_at_path(folder.socket()).ok());
    EXPECT_TRUE(exists(folder.socket()));
    ::unlink(folder.socket().c_str());
}

TEST(Shm, MissingListenerIsUnavailable) {
    const auto by_path = shm::connect_to_path("/tmp/no-such-folder/socket");
    ASSERT_FALSE(by_path.ok());
    EXPECT_EQ(by_path.error().code, ErrorCode::unavailable);
    EXPECT_FALSE(shm::connect_to_name("gpupool-test-unused").ok());
}

// ---- choice of the transport

struct Server {
    std::unique_ptr<transport::Listener> tcp = *transport::tcp::listen({"127.0.0.1", 0});
    Endpoint endpoint = *Endpoint::parse(tcp->address());
};

std::string peer_of_choice(const Server& server, Choice choice) {
    auto connection = transport::connect(server.endpoint, choice, Clock::now() + 5s);
    return connection ? (*connection)->peer().substr(0, 3) : "none";
}

TEST(Choose, SharedMemoryBesideALoopbackAddress) {
    const Server server;
    EXPECT_EQ(peer_of_choice(server, Choice::automatic), "tcp") << "there is no socket beside it yet";
    EXPECT_EQ(peer_of_choice(server, Choice::shm), "none");
    const auto beside = transport::listen_beside(server.endpoint);
    ASSERT_TRUE(beside.ok() && *beside != nullptr);
    EXPECT_EQ(peer_of_choice(server, Choice::automatic), "shm");
    EXPECT_EQ(peer_of_choice(server, Choice::shm), "shm");
    EXPECT_EQ(peer_of_choice(server, Choice::tcp), "tcp");
    const Endpoint by_name{"localhost", server.endpoint.port};
    auto connection = transport::connect(by_name, Choice::automatic, Clock::now() + 5s);
    ASSERT_TRUE(connection.ok());
    EXPECT_EQ((*connection)->peer().substr(0, 3), "shm");
}

TEST(Choose, ServerOnAllAddressesIsFoundByEachLoopbackAddress) {
    const auto tcp = *transport::tcp::listen({"0.0.0.0", 0});
    const auto bound = *Endpoint::parse(tcp->address());
    const auto beside = transport::listen_beside(bound);
    ASSERT_TRUE(beside.ok() && *beside != nullptr);
    for (const char* host : {"127.0.0.1", "127.0.0.5", "localhost"}) {
        auto connection = transport::connect({host, bound.port}, Choice::shm, Clock::now() + 5s);
        EXPECT_TRUE(connection.ok()) << host << ": " << connection.error().message;
    }
}

// By the host's name, whatever it is.
TEST(Choose, ServerIsFoundByTheHostsName) {
    std::array<char, 256> name{};
    ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
    const auto tcp = *transport::tcp::listen({"0.0.0.0", 0});
    const auto bound = *Endpoint::parse(tcp->address());
    const auto beside = transport::listen_beside(bound);
    ASSERT_TRUE(beside.ok() && *beside != nullptr);
    const auto addresses = transport::tcp::resolve({name.data(), bound.port}, Clock::now() + 10s);
    if (!addresses) {
        GTEST_SKIP() << addresses.error().message;
    }
    auto connection = transport::connect({name.data(), bound.port}, Choice::shm, Clock::now() + 10s);
    EXPECT_TRUE(connection.ok()) << connection.error().message;
}

// At the host's own address, if it has an interface besides the loopback.
TEST(Choose, ServerAtAnInterfaceAddress) {
    ifaddrs* all = nullptr;
    ASSERT_EQ(::getifaddrs(&all), 0);
    std::optional<std::string> host;
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_LOOPBACK) != 0) {
            continue;
        }
        std::array<char, INET_ADDRSTRLEN> text{};
        host = ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text.data(),
                           text.size());
    }
    ::freeifaddrs(all);
    if (!host) {
        GTEST_SKIP() << "no interface but the loopback's";
    }
    const auto tcp = *transport::tcp::listen({*host, 0});
    const auto bound = *Endpoint::parse(tcp->address());
    const auto beside = transport::listen_beside(bound);
    ASSERT_TRUE(beside.ok() && *beside != nullptr);
    auto connection = transport::connect(bound, Choice::automatic, Clock::now() + 5s);
    ASSERT_TRUE(connection.ok()) << connection.error().message;
    EXPECT_EQ((*connection)->peer().substr(0, 3), "shm");
}

TEST(Choose, RemoteServerHasNoLocalSocket) {
    const auto beside = transport::listen_beside({"10.1.2.3", 9470});
    ASSERT_TRUE(beside.ok());
    EXPECT_EQ(*beside, nullptr);
    EXPECT_FALSE(transport::connect({"10.1.2.3", 9470}, Choice::shm, Clock::now() + 1s).ok());
}

TEST(Choose, APathIsNotTcp) {
    const auto connection = transport::connect(*Endpoint::parse("unix:/tmp/x"), Choice::tcp, Clock::now() + 1s);
    ASSERT_FALSE(connection.ok());
    EXPECT_NE(connection.error().message.find("tcp forbids"), std::string::npos) << connection.error().message;
}

// ---- hostile peers

// A client whose handshake the test sends by hand; nothing is sent yet.
class Hostile {
  public:
    Hostile() {
        static int serial = 0;
        const std::string name = "gpupool-hostile-" + std::to_string(::getpid()) + "-" + std::to_string(++serial);
        listener_ = *shm::listen_at_name(name);
        socket_ = *shm::connect_socket(*shm::LocalAddress::abstract(name));
        server = *listener_->accept();
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        room_ = UniqueFd(ends[0]);
        theirs_ = UniqueFd(ends[1]);
    }
    void greet(const std::vector<int>& descriptors) {
        ASSERT_TRUE(shm::send_with_descriptors(socket_.get(), shm::kGreeting, descriptors).ok());
    }
    [[nodiscard]] int socket() const { return socket_.get(); }
    [[nodiscard]] int room() const { return theirs_.get(); }
    // The server's error for it, within a second.
    ErrorCode verdict() {
        std::byte byte;
        server->set_receive_deadline(Clock::now() + 1s);
        const auto received = server->receive({&byte, 1});
        EXPECT_FALSE(received.ok());
        return received ? ErrorCode::internal : received.error().code;
    }
    void leave() { socket_.reset(); }

    std::unique_ptr<transport::Connection> server;

  private:
    std::unique_ptr<transport::Listener> listener_;
    UniqueFd socket_, room_, theirs_;
};

UniqueFd memory_file(std::size_t bytes, unsigned flags, int seals) {
    UniqueFd file(::memfd_create("test", MFD_CLOEXEC | flags));
    EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    EXPECT_TRUE(seals == 0 || ::fcntl(file.get(), F_ADD_SEALS, seals) == 0);
    return file;
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

TEST(ShmHostile, SaysNothing) {
    Hostile client;
    EXPECT_EQ(client.verdict(), ErrorCode::timed_out);
    EXPECT_TRUE(client.server->descriptors().empty()) << "there is nothing to hand over";
}

TEST(ShmHostile, HangsUpAtOnce) {
    Hostile client;
    client.leave();
    EXPECT_EQ(client.verdict(), ErrorCode::closed);
}

TEST(ShmHostile, SendsBytesWithoutMemory) {
    Hostile client;
    client.greet({});
    EXPECT_EQ(client.verdict(), ErrorCode::invalid_input);
    EXPECT_NE(client.verdict(), ErrorCode::timed_out) << "the server gave up";
}

TEST(ShmHostile, SendsSomethingElse) {
    Hostile client;
    ASSERT_EQ(::send(client.socket(), "GET / HTTP/1.1\r\n", 16, 0), 16);
    EXPECT_EQ(client.verdict(), ErrorCode::invalid_input);
}

TEST(ShmHostile, SendsInvalidMemory) {
    const auto sealed = memory_file(shm::kMemoryBytes, MFD_ALLOW_SEALING, kSeals);
    const auto unsealed = memory_file(shm::kMemoryBytes, MFD_ALLOW_SEALING, 0);
    const auto can_shrink = memory_file(shm::kMemoryBytes, MFD_ALLOW_SEALING, F_SEAL_GROW | F_SEAL_SEAL);
    const auto can_change = memory_file(shm::kMemoryBytes, MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_GROW);
    const auto too_small = memory_file(shm::kMemoryBytes - 4096, MFD_ALLOW_SEALING, kSeals);
    const auto too_large = memory_file(shm::kMemoryBytes + 4096, MFD_ALLOW_SEALING, kSeals);
    const auto read_only = memory_file(shm::kMemoryBytes, MFD_ALLOW_SEALING, kSeals & ~F_SEAL_SEAL);
    ASSERT_EQ(::fcntl(read_only.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL), 0);
    char name[] = "/tmp/gpupool-shm-XXXXXX";
    const UniqueFd file(::mkstemp(name));
    ::unlink(name);
    ASSERT_EQ(::ftruncate(file.get(), shm::kMemoryBytes), 0);
    for (const auto* bad : {&unsealed, &can_shrink, &can_change, &too_small, &too_large, &file}) {
        Hostile client;
        client.greet({client.room(), client.room(), bad->get()});
        EXPECT_EQ(client.verdict(), ErrorCode::invalid_input) << bad->get();
    }
    Hostile reader;
    reader.greet({reader.room(), reader.room(), read_only.get()});
    EXPECT_EQ(reader.verdict(), ErrorCode::system) << "it cannot be mapped";
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const UniqueFd datagrams(::socket(AF_UNIX, SOCK_DGRAM, 0));
    for (const int bad : {pipe[0], datagrams.get(), sealed.get()}) {
        Hostile client;
        client.greet({bad, client.room(), sealed.get()});
        EXPECT_EQ(client.verdict(), ErrorCode::invalid_input);
        Hostile other;
        other.greet({other.room(), bad, sealed.get()});
        EXPECT_EQ(other.verdict(), ErrorCode::invalid_input);
    }
    for (const auto& many : {std::vector<int>{sealed.get()}, std::vector<int>(8, sealed.get())}) {
        Hostile client;
        client.greet(many);
        EXPECT_EQ(client.verdict(), ErrorCode::invalid_input);
    }
    ::close(pipe[0]);
    ::close(pipe[1]);
}

// A client whose rings the test can write to.
struct Scribbler {
    Hostile client;
    UniqueFd file = memory_file(shm::kMemoryBytes, MFD_ALLOW_SEALING, kSeals);
    std::byte* memory =
        static_cast<std::byte*>(::mmap(nullptr, shm::kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    shm::RingControl* to_server = reinterpret_cast<shm::RingControl*>(memory);

    Scribbler() { client.greet({client.room(), client.room(), file.get()}); }
    ~Scribbler() { ::munmap(memory, shm::kMemoryBytes); }
};

TEST(ShmHostile, CannotShrinkItsMemory) {
    Scribbler it;
    it.to_server->written = 100;
    EXPECT_EQ(::ftruncate(it.file.get(), 0), -1);
    // Holes are allowed; they read as zeros.
    EXPECT_EQ(::fallocate(it.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, shm::kRingBytes), 0);
    std::vector<std::byte> received(100);
    EXPECT_TRUE(transport::receive_exactly(*it.client.server, received).ok());
    EXPECT_EQ(received, std::vector<std::byte>(100));
}

TEST(ShmHostile, FalsifiesItsWriteIndex) {
    Scribbler it;
    it.to_server->written = shm::kRingBytes + 1;
    EXPECT_EQ(it.client.verdict(), ErrorCode::invalid_input);
}

TEST(ShmHostile, FalsifiesItsReadIndex) {
    Scribbler it;
    (it.to_server + 1)->read = 1;
    const auto data = pattern(shm::kRingBytes, 1);
    const ConstBuffer buffers[] = {data};
    const auto sent = it.client.server->send(buffers);
    ASSERT_FALSE(sent.ok());
    EXPECT_EQ(sent.error().code, ErrorCode::invalid_input);
}

TEST(ShmHostile, BeginsWithUsedRings) {
    const auto full = [](shm::RingControl& ring) {
        ring.written = 16 * shm::kRingBytes;
        ring.read = ring.written - shm::kRingBytes;
    };
    const auto read = [](shm::RingControl& ring) { ring.written = ring.read = 16; };
    for (const bool to_server : {false, true}) {
        for (const auto& use : {+full, +read}) {
            Scribbler it;
            use(*(it.to_server + (to_server ? 0 : 1)));
            EXPECT_EQ(it.client.verdict(), ErrorCode::invalid_input);
            EXPECT_TRUE(it.client.server->descriptors().empty()) << "there is nothing to hand over";
        }
    }
    Scribbler early;
    early.to_server->written = 1;  // a Hello may be there before the connection is accepted
    std::byte byte;
    EXPECT_TRUE(early.client.server->receive({&byte, 1}).ok());
}

TEST(ShmHostile, NeverReads) {
    Scribbler it;
    it.client.server->set_send_timeout(100ms);
    const auto data = pattern(2 * shm::kRingBytes, 1);
    const ConstBuffer buffers[] = {data};
    const auto before = Clock::now();
    const auto sent = it.client.server->send(buffers);
    ASSERT_FALSE(sent.ok());
    EXPECT_EQ(sent.error().code, ErrorCode::timed_out);
    EXPECT_LT(Clock::now() - before, 5s);
}

TEST(ShmHostile, ScribblesContinuously) {
    Scribbler it;
    std::atomic<bool> over{false};
    std::thread scribbler([&] {
        std::uint64_t word = 1;
        while (!over.load(std::memory_order_relaxed)) {
            for (std::size_t at = 0; at < 2 * sizeof(shm::RingControl); at += sizeof(word)) {
                word = word * 6364136223846793005u + 1442695040888963407u;
                const std::uint64_t value = (word & 1) != 0 ? word >> 40 : word;
                std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(it.memory + at))
                    .store(value, std::memory_order_relaxed);
            }
            (void)shm::send_wakeup(it.client.socket());
        }
    });
    // Every attempt returns, with data or with an error.
    std::vector<std::byte> bytes(4096);
    const ConstBuffer buffers[] = {bytes};
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
        it.client.server->set_receive_deadline(Clock::now() + 10ms);
        it.client.server->set_send_timeout(10ms);
        refused += it.client.server->receive(bytes).ok() ? 0 : 1;
        refused += it.client.server->send(buffers).ok() ? 0 : 1;
    }
    over = true;
    scribbler.join();
    EXPECT_GT(refused, 0);
}

// A limit on file sizes must give an error, not the signal SIGXFSZ, which would end the program.
TEST(Shm, MemoryBeyondTheFileSizeLimitIsRefused) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit low{1u << 20, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
    const auto refused = shm::SharedMemory::make("beyond", 2u << 20);
    const auto made = shm::SharedMemory::make("within", 1u << 20);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_FALSE(refused.ok());
    EXPECT_TRUE(made.ok());
}

}  // namespace
}  // namespace gpupool::testing
