// Sessions over shared memory: how they are chosen, and that they end as sessions over TCP do when a peer dies or
// misbehaves.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "protocol/transport/open.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/local_socket.h"
#include "protocol/transport/shm/memory.h"
#include "tests/e2e/sessions/hostile_client.h"
#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

constexpr long long kSessionLost = 46;  // CUDA_ERROR_DEVICE_UNAVAILABLE
const std::vector<std::string> kOverShm = {"GPUPOOL_TRANSPORT=shm"};

std::string shm_peer(pid_t process) {
    return fmt::format("shm pid {} uid {}", process, ::geteuid());
}

class Shm : public SessionTest {
  protected:
    // Starts a program in this mode, and waits until it prints `word`.
    std::unique_ptr<Program> begin(const std::string& mode, const std::string& word = "ready") {
        auto program = std::make_unique<Program>(*daemon_, session_program(mode), kOverShm);
        EXPECT_TRUE(program->says(word));
        return program;
    }
};

TEST_F(Shm, IsChosenAutomaticallyOnALoopbackAddress) {
    Program by_itself(*daemon_, session_program("steady"), {"GPUPOOL_TRANSPORT=auto"});
    ASSERT_TRUE(by_itself.says("ready"));
    EXPECT_EQ(session_of(*daemon_, by_itself.process()).peer, shm_peer(by_itself.process()));
    EXPECT_TRUE(session_of(*daemon_, bystander_->process()).peer.starts_with("tcp 127.0.0.1:"))
        << "the bystander is configured for TCP";
    by_itself.end_input();
    EXPECT_TRUE(by_itself.succeeds());
    EXPECT_EQ(by_itself.errors(), "");
}

TEST_F(Shm, SessionsAreSeparate) {
    auto first = begin("steady");
    auto second = begin("busy");
    auto third = begin("steady");
    for (auto* program : {first.get(), third.get()}) {
        EXPECT_TRUE(program->checks_again());
    }
    second->signal(SIGKILL);
    for (auto* program : {first.get(), third.get()}) {
        EXPECT_TRUE(program->checks_again());
        program->end_input();
        EXPECT_TRUE(program->succeeds());
        EXPECT_GT(program->number("rounds", milliseconds(0)), 1);
    }
}

TEST_F(Shm, CopiesOfChangingMemoryContinue) {
    Program program(*daemon_, session_program("lanes_raced"), kOverShm);
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_EQ(program.number("transfers"), 7);
}

TEST_F(Shm, KilledClientLeavesNothing) {
    for (const int pause_ms : {0, 30, 90, 150}) {  // times as good as any, within a few rounds of the program
        auto victim = begin("busy");
        const auto session = session_of(*daemon_, victim->process());
        std::this_thread::sleep_for(milliseconds(pause_ms));
        victim->signal(SIGKILL);
        EXPECT_TRUE(is_gone(*daemon_, session));
    }
}

TEST_F(Shm, StoppedClientKeepsItsSession) {
    auto victim = begin("steady");
    expect_session_survives_stop(*victim);
}

TEST_F(Shm, KilledWorkerGivesAnErrorAtOnce) {
    for (const char* mode : {"wait_synchronize", "wait_download", "wait_upload", "launches"}) {
        auto victim = begin(mode, "waiting");
        const auto session = session_of(*daemon_, victim->process());
        if (std::string(mode).starts_with("wait_")) {
            ASSERT_TRUE(victim->blocks());  // inside the call
        }
        const auto killed_at = now_ms();
        ASSERT_EQ(::kill(static_cast<pid_t>(session.worker_process_id), SIGKILL), 0);
        EXPECT_EQ(victim->number("error", milliseconds(5000)), kSessionLost) << mode;
        EXPECT_LE(victim->number("at", milliseconds(5000)) - killed_at, 1000) << mode;
        EXPECT_TRUE(victim->succeeds(milliseconds(10000))) << mode;
        EXPECT_TRUE(is_gone(*daemon_, session)) << mode;
    }
}

TEST_F(Shm, SessionsSurviveADaemonCrash) {
    auto program = begin("steady");
    const auto session = session_of(*daemon_, program->process());
    daemon_->kill_hard();
    daemon_->start();
    EXPECT_EQ(session_of(*daemon_, program->process()).peer, session.peer);
    program->end_input();
    EXPECT_TRUE(program->succeeds());
    EXPECT_TRUE(begin("steady") != nullptr) << "a session must find the next daemon";
}

class ShmTurnedOff : public Shm {
  protected:
    ShmTurnedOff() { settings_ = "local = false\n"; }
};

TEST_F(ShmTurnedOff, ByTheServerFallsBackToTcp) {
    Program by_itself(*daemon_, session_program("steady"), {"GPUPOOL_TRANSPORT=auto"});
    ASSERT_TRUE(by_itself.says("ready"));
    EXPECT_TRUE(session_of(*daemon_, by_itself.process()).peer.starts_with("tcp 127.0.0.1:"));
    by_itself.end_input();
    EXPECT_TRUE(by_itself.succeeds());
    EXPECT_EQ(by_itself.errors(), "") << "the fallback to TCP must be silent";
    Program insists(*daemon_, session_program("steady"), kOverShm);
    EXPECT_NE(insists.wait(), 0);
    for (const std::string& part : {"cannot share memory with " + daemon_->address(), std::string("local = false"),
                                    "no server listens at the local name gpupool/" + daemon_->address()}) {
        EXPECT_NE(insists.errors().find(part), std::string::npos) << insists.errors();
    }
}

TEST(ShmPath, ServesBesideTcp) {
    const TemporaryFolder folder;
    const std::string address = "unix:" + folder.path() + "/gpupool.sock";
    const Daemon daemon(session_settings(fmt::format("listen = [\"127.0.0.1:0\", \"{}\"]\n", address)));
    Program program(daemon, session_program("steady"), {"GPUPOOL_SERVER=" + address, "GPUPOOL_TRANSPORT=auto"});
    ASSERT_TRUE(program.says("ready"));
    EXPECT_EQ(session_of(daemon, program.process()).peer, shm_peer(program.process()));
    const auto by_path = cli::ask_status(address, "", milliseconds(5000));
    ASSERT_TRUE(by_path.ok()) << by_path.error().message;
    EXPECT_EQ(by_path->sessions.size(), 1u);
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

TEST(ShmPath, ServesAlone) {
    const TemporaryFolder folder;
    const std::string address = "unix:" + folder.path() + "/gpupool.sock";
    Daemon daemon(session_settings(fmt::format("listen = \"{}\"\n", address)));
    EXPECT_EQ(daemon.address(), address);
    for (int round = 0; round < 2; ++round) {
        Program program(daemon, {std::string(TEST_PROGRAMS) + "/vector_add"}, {"GPUPOOL_TRANSPORT=auto"});
        EXPECT_TRUE(program.succeeds());
        daemon.kill_hard();  // the socket file that it leaves must not be an obstacle
        daemon.start();
    }
}

// As from a container that shares the socket's folder: its own user, process and network namespaces.
TEST(ShmPath, ServesOtherNamespaces) {
    const std::string isolated = "unshare -Urpfn --mount-proc ";
    if (std::system((isolated + "true 2>/dev/null").c_str()) != 0) {
        GTEST_SKIP() << "this machine does not allow user namespaces";
    }
    const TemporaryFolder folder;
    const std::string address = "unix:" + folder.path() + "/gpupool.sock";
    const Daemon daemon(session_settings(fmt::format("listen = \"{}\"\n", address)));
    for (const char* const name : {"vector_add", "pinned_and_async_copies"}) {
        Program program(daemon, {"/bin/sh", "-c", isolated + TEST_PROGRAMS + "/" + name}, kOverShm);
        EXPECT_TRUE(program.succeeds()) << name << program.errors();
    }
}

std::unique_ptr<transport::Connection> connect_by_shm(const Daemon& daemon) {
    auto connection = transport::connect(*transport::Endpoint::parse(daemon.address()), transport::Choice::shm,
                                         transport::Clock::now() + std::chrono::seconds(10));
    if (!connection) {
        throw std::runtime_error(connection.error().message);
    }
    return std::move(*connection);
}

// The client of a session over shared memory that writes anywhere in the rings.
class Scribbler {
  public:
    explicit Scribbler(const Daemon& daemon) {
        auto connection = connect_by_shm(daemon);
        file_ = ::dup(connection->descriptors().at(3));
        socket_ = connection->native_handle();
        memory_ = static_cast<std::byte*>(
            ::mmap(nullptr, transport::shm::kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
        client_ = std::make_unique<HostileClient>(daemon, "scribbler", std::move(connection));
    }
    ~Scribbler() {
        ::munmap(memory_, transport::shm::kMemoryBytes);
        ::close(file_);
    }
    Scribbler(const Scribbler&) = delete;

    [[nodiscard]] std::atomic_ref<std::uint64_t> written() const {
        return std::atomic_ref(reinterpret_cast<transport::shm::RingControl*>(memory_)->written);
    }
    [[nodiscard]] std::span<std::byte> memory() { return {memory_, transport::shm::kMemoryBytes}; }
    [[nodiscard]] int file() const { return file_; }
    [[nodiscard]] cli::SessionStatus session() const { return client_->session(); }
    // Wakes the server, which may sleep.
    void ring() const { (void)transport::shm::send_wakeup(socket_); }

  private:
    int file_ = -1;
    int socket_ = -1;  // the connection's
    std::byte* memory_ = nullptr;
    std::unique_ptr<HostileClient> client_;
};

class ShmHostile : public Shm {
  protected:
    void TearDown() override {
        // Every session ended with a logged reason; a worker that died of a signal would log none.
        EXPECT_EQ(server_log().find("(signal"), std::string::npos);
        Shm::TearDown();
    }
};

TEST_F(ShmHostile, ImpossibleIndexEndsOnlyItsSession) {
    Scribbler liar(*daemon_);
    liar.written().fetch_add(transport::shm::kRingBytes + 1);
    liar.ring();
    EXPECT_TRUE(is_gone(*daemon_, liar.session()));
}

TEST_F(ShmHostile, GarbageInTheRingEndsOnlyItsSession) {
    Scribbler liar(*daemon_);
    std::memset(liar.memory().data() + transport::shm::kControlBytes, 0x5a, transport::shm::kRingBytes);
    liar.written().fetch_add(4096);
    liar.ring();
    EXPECT_TRUE(is_gone(*daemon_, liar.session()));
}

TEST_F(ShmHostile, PunchedOutMemoryEndsOnlyItsSession) {
    Scribbler liar(*daemon_);
    EXPECT_NE(::ftruncate(liar.file(), 0), 0) << "the seal must prevent truncation";
    ASSERT_EQ(::fallocate(liar.file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, transport::shm::kMemoryBytes), 0);
    liar.ring();  // its indices are zero now
    EXPECT_TRUE(is_gone(*daemon_, liar.session()));
}

TEST_F(ShmHostile, ContinuousScribblingEndsOnlyItsSession) {
    Scribbler liar(*daemon_);
    std::uint64_t word = 1;
    const bool gone = eventually([&] {
        for (int i = 0; i < 100000; ++i) {
            word = word * 6364136223846793005u + 1442695040888963407u;
            const std::size_t at = word >> 20 & 255;
            std::memcpy(liar.memory().data() + at / 8 * 8, &word, sizeof word);
            const std::size_t in_rings = (word >> 40) % (2 * transport::shm::kRingBytes);
            liar.memory()[transport::shm::kControlBytes + in_rings] = std::byte(word);
        }
        liar.ring();
        return is_gone(*daemon_, liar.session(), milliseconds(1));
    });
    EXPECT_TRUE(gone);
}

// ---- pinned memory shared by program and GPU

bool is_mapped_file(pid_t process, const char* name, long long address) {
    std::ifstream maps(fmt::format("/proc/{}/maps", process));
    const std::string start = fmt::format("{:x}-", address);
    for (std::string line; std::getline(maps, line);) {
        // Adjacent mappings of one file would be merged; each allocation has its own file.
        if (line.starts_with(start) && line.find(name) != std::string::npos) {
            return true;
        }
    }
    return false;
}

TEST_F(Shm, PinnedMemoryIsMappedByTheWorker) {
    auto program = begin("pinned", "pinned");
    const long long address = program->number("pinned");
    const auto worker = static_cast<pid_t>(session_of(*daemon_, program->process()).worker_process_id);
    EXPECT_TRUE(is_mapped_file(program->process(), "memfd:gpupool-pinned", address));
    EXPECT_TRUE(is_mapped_file(worker, "memfd:gpupool-pinned", address));
    program->end_input();
    EXPECT_TRUE(program->succeeds());
}

TEST_F(Shm, PinnedMemoryOverTcpIsNotShared) {
    Program program(*daemon_, session_program("pinned"), {"GPUPOOL_TRANSPORT=tcp"});
    const long long address = program.number("pinned");
    EXPECT_FALSE(is_mapped_file(program.process(), "memfd:gpupool-pinned", address));
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

// A hostile client that gives the worker memory of its own.
class Sharing : public ShmHostile {
  protected:
    static constexpr std::uint64_t kBytes = 1u << 20;

    void SetUp() override {
        ShmHostile::SetUp();
        auto connection = connect_by_shm(*daemon_);
        connection_ = connection.get();
        client_ = std::make_unique<HostileClient>(*daemon_, "sharing", std::move(connection));
        context_ = client_->make_context();
        auto file = transport::shm::SharedMemory::make_file("test", kBytes);
        ASSERT_TRUE(file.ok());
        file_ = std::move(*file);
        memory_ = static_cast<std::byte*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_.get(), 0));
        address_ = reinterpret_cast<CUdeviceptr>(memory_);
    }
    void TearDown() override {
        client_.reset();
        ::munmap(memory_, kBytes);
        ShmHostile::TearDown();
    }
    std::optional<int> share(int file, CUdeviceptr address, std::uint64_t bytes) {
        EXPECT_TRUE(connection_->give(file, address).ok());
        return client_->call<calls::gpHostShare>(context_, address, bytes);
    }

    transport::Connection* connection_ = nullptr;
    std::unique_ptr<HostileClient> client_;
    CUcontext context_ = nullptr;
    UniqueFd file_;
    std::byte* memory_ = nullptr;
    CUdeviceptr address_ = 0;
};

TEST_F(Sharing, GpuAccessesTheSharedMemory) {
    ASSERT_EQ(share(file_.get(), address_, kBytes), CUDA_SUCCESS);
    const CUdeviceptr slab = client_->make_slab(2u << 20);
    const CUstream stream = client_->make_stream();
    std::memset(memory_, 0x11, kBytes);
    client_->add<calls::cuMemcpyDtoDAsync_v2>(slab, address_, std::size_t{kBytes / 2}, stream);
    client_->add<calls::cuMemsetD8Async>(slab + kBytes / 2, static_cast<unsigned char>(0x22), std::size_t{kBytes / 2},
                                         stream);
    client_->add<calls::cuMemcpyDtoDAsync_v2>(address_ + 16, slab + kBytes / 2 - 16, std::size_t{32}, stream);
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(stream), CUDA_SUCCESS);
    std::vector<std::byte> expected(64, std::byte{0x11});
    std::fill(expected.begin() + 32, expected.begin() + 48, std::byte{0x22});
    EXPECT_EQ(std::memcmp(memory_, expected.data(), expected.size()), 0);
    // Unregistered as a mirror is; then the address is no longer known.
    EXPECT_EQ(client_->call<calls::gpHostUnmirror>(address_), CUDA_SUCCESS);
    EXPECT_EQ(share(file_.get(), address_, kBytes), CUDA_SUCCESS);
}

TEST_F(Sharing, AddressInUseByTheWorkerIsNotSupported) {
    EXPECT_EQ(share(file_.get(), HostileClient::kWindowBase, kBytes), CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_EQ(share(file_.get(), address_, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(share(file_.get(), address_, kBytes), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(share(file_.get(), address_ + 8, kBytes), CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(client_->alive());
}

// Otherwise the worker would allocate the pages, charged to the server.
TEST_F(Sharing, SparseMemoryIsRefused) {
    ASSERT_EQ(::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kBytes / 2, 4096), 0);
    EXPECT_EQ(share(file_.get(), address_, kBytes), CUDA_ERROR_OUT_OF_MEMORY);
    memory_[kBytes / 2] = std::byte{1};
    EXPECT_EQ(share(file_.get(), address_, kBytes), CUDA_SUCCESS);
}

class SharingLittle : public Sharing {
  protected:
    SharingLittle() { settings_ = "[limits]\nshared_memory = \"1MiB\"\n"; }
};

TEST_F(SharingLittle, SharedMemoryIsLimited) {
    auto* const more =
        static_cast<std::byte*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto file = transport::shm::SharedMemory::make_file("test", 4096);
    ASSERT_EQ(::fallocate(file->get(), 0, 0, 4096), 0);
    ASSERT_EQ(share(file_.get(), address_, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(share(file->get(), reinterpret_cast<CUdeviceptr>(more), 4096), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(client_->call<calls::gpHostUnmirror>(address_), CUDA_SUCCESS);
    EXPECT_EQ(share(file->get(), reinterpret_cast<CUdeviceptr>(more), 4096), CUDA_SUCCESS);
    ::munmap(more, 4096);
}

TEST_F(SharingLittle, PinnedMemoryAboveTheLimitStillWorks) {
    // Two blocks of 1 MiB.
    Program program(*daemon_, session_program("pinned"), kOverShm);
    const long long address = program.number("pinned");
    EXPECT_TRUE(is_mapped_file(program.process(), "memfd:gpupool-pinned", address)) << "the first block is shared";
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

TEST_F(Sharing, MissingDescriptorEndsOnlyItsSession) {
    EXPECT_EQ(client_->call<calls::gpHostShare>(context_, address_, kBytes), std::nullopt);
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

TEST_F(Sharing, WrongSizeEndsOnlyItsSession) {
    EXPECT_EQ(share(file_.get(), address_, 2 * kBytes), std::nullopt);
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

TEST_F(Sharing, ShrinkableMemoryEndsOnlyItsSession) {
    const UniqueFd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(file.get(), kBytes), 0);
    EXPECT_EQ(share(file.get(), address_, kBytes), std::nullopt);
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

TEST_F(Sharing, HoleReadsAsZerosOnTheGpu) {
    ASSERT_EQ(share(file_.get(), address_, kBytes), CUDA_SUCCESS);
    std::memset(memory_, 0x33, kBytes);
    ASSERT_EQ(::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes), 0);
    const CUdeviceptr slab = client_->make_slab(2u << 20);
    const CUstream stream = client_->make_stream();
    client_->add<calls::cuMemcpyDtoDAsync_v2>(slab, address_, std::size_t{kBytes}, stream);
    client_->add<calls::cuMemsetD8Async>(address_, static_cast<unsigned char>(0x44), std::size_t{1}, stream);
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(stream), CUDA_SUCCESS);
    EXPECT_EQ(memory_[0], std::byte{0x44});
    EXPECT_EQ(memory_[1], std::byte{0});
}

}  // namespace
}  // namespace gpupool::test
