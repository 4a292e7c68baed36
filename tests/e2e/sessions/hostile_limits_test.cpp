// Every resource has a limit: objects, queued work, and images that never arrive.

#include <cstring>
#include <fstream>
#include <string>

#include "tests/e2e/sessions/hostile_client.h"

namespace gpupool::test {
namespace {

constexpr std::size_t kMiB = 1u << 20;

class HostileLimits : public HostileTest {
  protected:
    // Sends `add` up to `count` times without waiting for answers. True when the server refused one or ended the
    // session.
    template <class Add>
    bool refused_within(int count, Add add) {
        client_->flags = 0;
        for (int i = 0; i < count; ++i) {
            add(i);
            if (i % 4096 == 4095) {
                if (!client_->flush() || !client_->alive() || client_->deferred_errors() != 0) {
                    return true;
                }
            }
        }
        client_->flush();
        return !client_->alive() || client_->deferred_errors() != 0;
    }

    // The result of loading the image, or kWanted when the server asks for its data first.
    static constexpr int kWanted = -1;
    int load(const ImageHash& hash) {
        unsigned wanted = 0;
        auto module = client_->mint<CUmodule>();
        const std::uint64_t number = client_->add<calls::gpModuleLoad>(
            &module, &hash, &wanted, static_cast<const int*>(nullptr), static_cast<const std::uint64_t*>(nullptr), 0u,
            static_cast<char*>(nullptr), std::size_t{0});
        client_->flush();
        const auto answer = client_->answer_to(number);
        if (!answer || answer->header.result != CUDA_SUCCESS || answer->body.size() < sizeof wanted) {
            return answer ? answer->header.result : CUDA_ERROR_UNKNOWN;
        }
        std::memcpy(&wanted, answer->body.data(), sizeof wanted);
        return wanted != 0 ? kWanted : CUDA_SUCCESS;
    }
};

TEST_F(HostileLimits, StreamsAreLimited) {
    EXPECT_TRUE(refused_within(17'000, [&](int) {
        auto stream = client_->mint<CUstream>();
        client_->add<calls::cuStreamCreate>(&stream, 1u);
    }));
    expect_bounded();
}

TEST_F(HostileLimits, EventsAreLimited) {
    EXPECT_TRUE(refused_within(600'000, [&](int) {
        auto event = client_->mint<CUevent>();
        client_->add<calls::cuEventCreate>(&event, 0u);
    }));
    expect_bounded();
}

TEST_F(HostileLimits, ContextsAreLimited) {
    int made = 0;
    for (int i = 0; i < 2000; ++i) {
        auto context = client_->mint<CUcontext>();
        if (client_->call<calls::gpContextCreate>(&context, 0u, 0, static_cast<const CUexecAffinityParam*>(nullptr),
                                                  0u) != CUDA_SUCCESS) {
            break;
        }
        ++made;
    }
    EXPECT_LT(made, 1000);
    EXPECT_GE(made, 16);
    EXPECT_TRUE(client_->alive());
    expect_bounded();
}

// Per-thread default streams of threads that do not exist.
TEST_F(HostileLimits, ThreadsAreLimited) {
    EXPECT_TRUE(refused_within(200'000, [&](int i) {
        client_->thread = static_cast<std::uint32_t>(i);
        client_->flags = codec::kPerThreadDefaultStream;
        client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0}, static_cast<unsigned char>(0), std::size_t{0},
                                             static_cast<CUstream>(nullptr));
        client_->flags = 0;
        client_->thread = 0;
    }));
    expect_bounded();
}

// Watches for a record that is never made.
TEST_F(HostileLimits, WatchesAreLimited) {
    const CUstream stream = client_->make_stream();
    const CUevent event = client_->make_event();
    const CUdeviceptr slab = client_->make_slab(4 * kMiB);
    client_->flags = 0;
    client_->add<calls::gpCopyToDevice>(slab, 2 * kMiB, std::uint64_t{1}, std::uint64_t{0},
                                        static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    client_->add<calls::cuEventRecord>(event, stream);
    constexpr std::uint64_t kWatches = 600'000;
    EXPECT_FALSE(refused_within(kWatches, [&](int) { client_->add<calls::gpEventWatch>(event, std::uint64_t{1}); }));
    client_->read_for(milliseconds(200));
    ASSERT_FALSE(client_->ended_events().empty());
    EXPECT_EQ(client_->ended_events().back().result, CUDA_ERROR_INVALID_HANDLE);
    EXPECT_LT(client_->ended_events().size(), kWatches / 2) << "accepted watches must wait";
    expect_bounded();
}

// Copies behind data that never arrives.
TEST_F(HostileLimits, TransfersAreLimited) {
    const CUstream stream = client_->make_stream();
    const CUdeviceptr slab = client_->make_slab(4 * kMiB);
    EXPECT_TRUE(refused_within(2'000'000, [&](int i) {
        client_->add<calls::gpCopyToDevice>(slab, 2 * kMiB, static_cast<std::uint64_t>(i + 1), std::uint64_t{0},
                                            static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    }));
    expect_bounded();
}

// The client ignores the worker's throttling.
TEST_F(HostileLimits, WorkBehindMissingDataIsLimited) {
    const CUstream stream = client_->make_stream();
    const CUdeviceptr slab = client_->make_slab(4 * kMiB);
    client_->flags = 0;
    client_->add<calls::gpCopyToDevice>(slab, 2 * kMiB, std::uint64_t{1}, std::uint64_t{0},
                                        static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    const std::vector<unsigned char> data(60'000);
    EXPECT_TRUE(refused_within(60'000, [&](int) {
        client_->add<calls::gpCopyToDevice>(slab, data.size(), std::uint64_t{0}, std::uint64_t{0}, data.data(),
                                            data.size(), stream);
    }));
    expect_bounded();
}

// The host functions fill the driver's queue of their stream, which must not block the dispatcher.
TEST_F(HostileLimits, HostFunctionsThatNeverReturnBlockOnlyTheirStream) {
    const CUstream stream = client_->make_stream();
    client_->flags = 0;
    for (std::uint64_t ticket = 1; ticket <= 100'000; ++ticket) {
        client_->add<calls::gpHostFunction>(ticket, stream);
    }
    client_->flush();
    EXPECT_TRUE(client_->alive());
    expect_bounded();
    client_->leave();
    EXPECT_TRUE(is_gone(*daemon_, client_->session()));
}

// With one ticket for two functions, the client could not report the first one's return.
TEST_F(HostileLimits, RepeatedHostFunctionTicketIsRefused) {
    const CUstream stream = client_->make_stream();
    EXPECT_EQ(client_->call<calls::gpHostFunction>(std::uint64_t{9}, stream), CUDA_SUCCESS);
    EXPECT_NE(client_->call<calls::gpHostFunction>(std::uint64_t{9}, stream).value_or(0), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpHostFunctionDone>(std::uint64_t{9}), CUDA_SUCCESS);
    EXPECT_NE(client_->call<calls::gpHostFunctionDone>(std::uint64_t{9}), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(stream), CUDA_SUCCESS);
}

// Thousands of blocking calls, more than there are threads to make them.
TEST_F(HostileLimits, WaitingCallsAreLimited) {
    const CUstream stream = client_->make_stream();
    EXPECT_EQ(client_->call<calls::gpHostFunction>(std::uint64_t{1}, stream), CUDA_SUCCESS);
    EXPECT_TRUE(refused_within(1'000'000, [&](int) { client_->add<calls::cuStreamSynchronize>(stream); }));
    expect_bounded();
}

// Calls that run on helper threads. The number of helpers is bounded; the other calls queue and are answered later.
TEST_F(HostileLimits, HelperThreadsAreLimited) {
    constexpr int kCalls = 100'000;
    client_->flags = 0;
    for (int i = 0; i < kCalls; ++i) {
        client_->add<calls::cuCtxSetLimit>(CU_LIMIT_STACK_SIZE, std::size_t{1024});
    }
    client_->flush();
    EXPECT_TRUE(client_->alive());
    expect_bounded();
    std::ifstream status("/proc/" + std::to_string(client_->session().worker_process_id) + "/status");
    int threads = 0;
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with("Threads:")) {
            threads = std::stoi(line.substr(8));
        }
    }
    EXPECT_GT(threads, 0) << "its status cannot be read";
    EXPECT_LT(threads, 64);
}

// Host memory of the server is not counted against the quota, so a client may not allocate any.
TEST_F(HostileLimits, HostMemoryOfTheServerIsRefused) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    for (const auto type : {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA}) {
        properties.location = {type, 0};
        EXPECT_EQ(client_->call<calls::cuMemCreate>(&handle, 64 * kMiB, &properties, 0ull), CUDA_ERROR_NOT_SUPPORTED);
    }
    properties.location = {CU_MEM_LOCATION_TYPE_INVALID, 0};
    EXPECT_EQ(client_->call<calls::cuMemCreate>(&handle, 64 * kMiB, &properties, 0ull), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostileLimits, ImageDataWithoutAnOfferIsRefused) {
    const ImageHash hash{1, 2};
    const unsigned char data[64] = {};
    EXPECT_EQ(client_->call<calls::gpImageData>(&hash, std::uint64_t{0}, std::uint64_t{0}, data, sizeof data),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(client_->call<calls::gpImageData>(static_cast<const ImageHash*>(nullptr), std::uint64_t{0},
                                                std::uint64_t{0}, data, sizeof data),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileLimits, ImageDataThatContradictsItsOfferIsRefused) {
    const ImageHash hash{3, 4};
    const unsigned char data[64] = {};
    EXPECT_EQ(client_->call<calls::gpImageOffer>(&hash, std::uint64_t{100}), CUDA_SUCCESS);
    const auto add = [&](std::uint64_t offset, std::size_t bytes) {
        return client_->call<calls::gpImageData>(&hash, offset, std::uint64_t{0}, data, bytes).value_or(-1);
    };
    EXPECT_EQ(add(1, 64), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(~0ull, 64), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(0, 64), CUDA_SUCCESS);
    EXPECT_EQ(add(0, 64), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(64, 64), CUDA_ERROR_INVALID_VALUE);
    // Data that is declared compressed but is not, or declares more bytes than there is room for.
    for (const std::uint64_t unpacked :
         {std::uint64_t{36}, std::uint64_t{37}, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
        EXPECT_EQ(client_->call<calls::gpImageData>(&hash, std::uint64_t{64}, unpacked, data, sizeof data),
                  CUDA_ERROR_INVALID_VALUE)
            << unpacked;
    }
    // An incomplete image cannot be loaded.
    EXPECT_EQ(load(hash), kWanted);
    EXPECT_TRUE(client_->alive());
}

// An offer takes no memory; the worker allocates when data arrives.
TEST_F(HostileLimits, OffersTakeNoMemory) {
    for (std::uint64_t i = 0; i < 7; ++i) {
        const ImageHash hash{100 + i, 0};
        EXPECT_EQ(client_->call<calls::gpImageOffer>(&hash, std::uint64_t{1} << 30), CUDA_SUCCESS);
    }
    const ImageHash hash{1, 1};
    EXPECT_EQ(client_->call<calls::gpImageOffer>(&hash, std::uint64_t{1} << 60), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(client_->call<calls::gpImageOffer>(&hash, std::uint64_t{0}), CUDA_ERROR_INVALID_IMAGE);
    expect_bounded(256 * kMiB);
}

TEST_F(HostileLimits, OffersAreLimited) {
    EXPECT_TRUE(refused_within(3'000'000, [&](int i) {
        const ImageHash hash{static_cast<std::uint64_t>(i), 9};
        client_->add<calls::gpImageOffer>(&hash, std::uint64_t{8});
    }));
    expect_bounded(512 * kMiB);
}

// A JIT option that is a pointer would point into the worker's memory.
TEST_F(HostileLimits, PointerOptionsDoNotReachTheDriver) {
    const std::string ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f() { ret; }\n";
    const ImageHash hash{5, 6};
    EXPECT_EQ(client_->call<calls::gpImageOffer>(&hash, std::uint64_t{ptx.size()}), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpImageData>(&hash, std::uint64_t{0}, std::uint64_t{0},
                                                reinterpret_cast<const unsigned char*>(ptx.data()), ptx.size()),
              CUDA_SUCCESS);
    for (const int option :
         {static_cast<int>(CU_JIT_INFO_LOG_BUFFER), static_cast<int>(CU_JIT_ERROR_LOG_BUFFER),
          static_cast<int>(CU_JIT_GLOBAL_SYMBOL_NAMES), static_cast<int>(CU_JIT_REFERENCED_KERNEL_NAMES), 12345, -1}) {
        unsigned wanted = 0;
        auto module = client_->mint<CUmodule>();
        const int options[] = {option, static_cast<int>(CU_JIT_OPTIMIZATION_LEVEL)};
        const std::uint64_t values[] = {0x4141414141414141, 4};
        const auto result = client_->call<calls::gpModuleLoad>(&module, &hash, &wanted, options, values, 2u,
                                                               static_cast<char*>(nullptr), std::size_t{0});
        EXPECT_EQ(result, CUDA_ERROR_INVALID_VALUE) << option;
    }
    EXPECT_TRUE(client_->alive());
}

// Another session of the tenant would receive it under the name that this client gave.
TEST_F(HostileLimits, ImageWithAWrongHashIsRefused) {
    const std::string ptx = ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry f() { ret; }\n";
    const ImageHash hash{7, 8};
    EXPECT_EQ(client_->call<calls::gpImageOffer>(&hash, std::uint64_t{ptx.size()}), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpImageData>(&hash, std::uint64_t{0}, std::uint64_t{0},
                                                reinterpret_cast<const unsigned char*>(ptx.data()), ptx.size()),
              CUDA_SUCCESS);
    EXPECT_EQ(load(hash), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(load(hash), kWanted) << "a refused image must not be kept";
    EXPECT_TRUE(client_->alive());
}

class HostileMirrors : public HostileLimits {
  protected:
    static constexpr std::uint64_t kSomewhere = 0x300000000000;  // unused by client and worker
    int make(std::uint64_t address, std::uint64_t bytes) {
        return client_->call<calls::gpHostMirror>(context_, CUdeviceptr{address}, bytes).value_or(-1);
    }
    int end(std::uint64_t address) { return client_->call<calls::gpHostUnmirror>(CUdeviceptr{address}).value_or(-1); }
    int write(const std::vector<std::uint64_t>& words) {
        return client_->call<calls::gpHostWrite>(reinterpret_cast<const unsigned char*>(words.data()), words.size() * 8)
            .value_or(-1);
    }
    // A change record of one word at `address`.
    static std::vector<std::uint64_t> record(std::uint64_t address) {
        return {address, 8ull | 8ull << 32, 0xffull | 0x1122334455667700ull, 0};
    }
};

TEST_F(HostileMirrors, MappedAddressesAreRefused) {
    EXPECT_EQ(make(0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_NE(make(0, 4096), CUDA_SUCCESS);
    EXPECT_NE(make(~0ull - 4096, 4096), CUDA_SUCCESS);
    EXPECT_NE(make(~0ull, 1), CUDA_SUCCESS);
    EXPECT_NE(make(1, ~0ull), CUDA_SUCCESS);
    EXPECT_NE(make(HostileClient::kWindowBase, 4096), CUDA_SUCCESS);
    // Where the worker's own program, libraries and stacks are.
    std::ifstream maps("/proc/" + std::to_string(client_->worker_process_id()) + "/maps");
    int taken = 0;
    for (std::string line; std::getline(maps, line) && taken < 40; ++taken) {
        EXPECT_NE(make(std::stoull(line, nullptr, 16), 4096), CUDA_SUCCESS) << line;
    }
    EXPECT_GT(taken, 10);
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileMirrors, OverlappingMirrorsAndASecondEndAreRefused) {
    EXPECT_EQ(make(kSomewhere, 10000), CUDA_SUCCESS);
    EXPECT_NE(make(kSomewhere, 10000), CUDA_SUCCESS);
    EXPECT_NE(make(kSomewhere + 4096, 100), CUDA_SUCCESS);
    EXPECT_EQ(end(kSomewhere + 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(end(kSomewhere), CUDA_SUCCESS);
    EXPECT_EQ(end(kSomewhere), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(make(kSomewhere, 10000), CUDA_SUCCESS);
}

TEST_F(HostileMirrors, WritesOutsideAreRefused) {
    EXPECT_EQ(make(kSomewhere, 10000), CUDA_SUCCESS);
    EXPECT_EQ(write(record(kSomewhere)), CUDA_SUCCESS);
    EXPECT_EQ(write(record(kSomewhere + 9992)), CUDA_SUCCESS);
    for (const std::uint64_t address : {kSomewhere - 8, kSomewhere + 10000, kSomewhere + 3, std::uint64_t{0},
                                        std::uint64_t{0x1000}, ~std::uint64_t{7}}) {
        EXPECT_EQ(write(record(address)), CUDA_ERROR_INVALID_VALUE) << address;
    }
    auto lies = record(kSomewhere);
    lies[1] = 0xfffffff8ull | 8ull << 32;
    EXPECT_EQ(write(lies), CUDA_ERROR_INVALID_VALUE);
    lies[1] = 8ull | 0xffffffffull << 32;
    EXPECT_EQ(write(lies), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(write({}), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(end(kSomewhere), CUDA_SUCCESS);
    EXPECT_EQ(write(record(kSomewhere)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileMirrors, AreLimited) {
    int made = 0;
    while (made < 64 && make(kSomewhere + made * (1ull << 30), 1ull << 30) == CUDA_SUCCESS) {
        ++made;
    }
    EXPECT_EQ(made, 4);
    EXPECT_EQ(make(kSomewhere + (1ull << 40), 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(client_->alive());
    expect_bounded();
}

}  // namespace
}  // namespace gpupool::test
