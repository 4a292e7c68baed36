// Commands that are well formed but wrong: unknown calls, invalid handles, null or random arguments, impossible
// addresses and sizes. Each returns an error; the session continues (or a rule ends it), and no worker crashes.

#include <random>

#include "tests/e2e/sessions/hostile_client.h"

namespace gpupool::test {
namespace {

class HostileCalls : public HostileTest {
  protected:
    // Invalid handles of a kind: one never created, random numbers, and live handles of other kinds.
    std::vector<std::uint64_t> wrong_handles(codec::HandleKind kind) {
        std::vector<std::uint64_t> wrong = {
            codec::make_handle(kind, 9999),      codec::make_handle(kind, 3, true), 0xdeadbeefdeadbeef, 0x10, ~0ull,
            codec::make_handle(kind, 9999) | 0xf};
        const auto living = [&](std::uint64_t handle) {
            if (codec::kind_of(handle) != kind) {
                wrong.push_back(handle);
            }
        };
        living(codec::to_wire(context_));
        living(codec::to_wire(client_->make_stream()));
        living(codec::to_wire(client_->make_event()));
        return wrong;
    }
    template <class Call, class... Given>
    void expect_refused(const char* what, std::uint64_t handle, Given... given) {
        const auto result = client_->call<Call>(given...);
        ASSERT_TRUE(result.has_value()) << what << " with " << std::hex << handle << " ended the session";
        EXPECT_TRUE(*result == CUDA_ERROR_INVALID_HANDLE || *result == CUDA_ERROR_INVALID_CONTEXT ||
                    *result == CUDA_ERROR_INVALID_VALUE)
            << what << " with " << std::hex << handle << " gave " << std::dec << *result;
    }
};

TEST_F(HostileCalls, UnknownOpcodesAreRefusedAndTheSessionContinues) {
    for (const int opcode : {0, 900, 1023, 1024, 0x7fff, 0xF07F, 0xF080, 0xFFFF}) {
        const auto number = client_->add_record(static_cast<std::uint16_t>(opcode), std::vector<std::byte>(64));
        client_->flush();
        EXPECT_EQ(client_->result_of(number), CUDA_ERROR_NOT_SUPPORTED) << opcode;
    }
    // Calls of the table that the client never sends are unknown to the worker as well.
    const auto number = client_->add_record(calls::cuMemcpy::kOpcode, std::vector<std::byte>(64));
    client_->flush();
    EXPECT_EQ(client_->result_of(number), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileCalls, WrongStreamsAreRefused) {
    const CUevent event = client_->make_event();
    const CUdeviceptr slab = client_->make_slab(2u << 20);
    for (const auto handle : wrong_handles(codec::HandleKind::stream)) {
        const auto stream = codec::from_wire<CUstream>(handle);
        expect_refused<calls::cuStreamSynchronize>("synchronize", handle, stream);
        expect_refused<calls::cuStreamQuery>("query", handle, stream);
        expect_refused<calls::cuStreamDestroy_v2>("destroy", handle, stream);
        expect_refused<calls::cuStreamWaitEvent>("wait", handle, stream, event, 0u);
        expect_refused<calls::cuEventRecord>("record", handle, event, stream);
        expect_refused<calls::cuMemsetD8Async>("memset", handle, slab, static_cast<unsigned char>(1), std::size_t{8},
                                               stream);
        expect_refused<calls::gpCopyFromDevice>("copy", handle, slab, std::size_t{8}, std::uint64_t{1}, stream);
        expect_refused<calls::gpHostFunction>("function", handle, std::uint64_t{1}, stream);
    }
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileCalls, WrongBatchesAndPeerCopiesAreRefused) {
    const CUdeviceptr slab = client_->make_slab(2u << 20);
    const CUstream stream = client_->make_stream();
    const std::vector<CopyRange> good(codec::kMaxBatchedCopies, CopyRange{slab, slab + 4096, 16});
    EXPECT_EQ(client_->call<calls::gpCopyBatch>(good.data(), good.size(), stream), CUDA_SUCCESS);
    const std::vector<CopyRange> many(codec::kMaxBatchedCopies + 1, CopyRange{slab, slab + 4096, 16});
    EXPECT_EQ(client_->call<calls::gpCopyBatch>(many.data(), many.size(), stream), CUDA_ERROR_INVALID_VALUE);
    // An address at which the GPU has no memory.
    static char here[16] = {};
    const auto own = reinterpret_cast<CUdeviceptr>(&here);
    for (const CopyRange& wrong : {CopyRange{slab, own, 16}, CopyRange{own, slab, 16}, CopyRange{slab, 0, 16},
                                   CopyRange{slab, slab + 4096, ~0ull}}) {
        EXPECT_EQ(client_->call<calls::gpCopyBatch>(&wrong, std::size_t{1}, stream), CUDA_ERROR_INVALID_VALUE);
    }
    CopyShape shape{};
    shape.srcMemoryType = CU_MEMORYTYPE_DEVICE, shape.srcDevice = slab;
    shape.dstMemoryType = CU_MEMORYTYPE_DEVICE, shape.dstDevice = slab + 4096;
    shape.WidthInBytes = 16, shape.Height = shape.Depth = 1;
    EXPECT_EQ(client_->call<calls::gpCopyPeer>(&shape, context_, context_, stream), CUDA_SUCCESS);
    for (const CUmemorytype type : {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_ARRAY}) {
        shape.srcMemoryType = type;
        EXPECT_NE(client_->call<calls::gpCopyPeer>(&shape, context_, context_, stream).value_or(CUDA_SUCCESS),
                  CUDA_SUCCESS);
    }
    EXPECT_TRUE(client_->alive());
}

// Resources contain addresses of the driver, so only those are accepted that the worker gave.
TEST_F(HostileCalls, ForgedResourcesAndGreenContextsAreRefused) {
    CUdevResource told{}, rest{};
    EXPECT_EQ(client_->call<calls::cuDeviceGetDevResource>(0, &told, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    std::vector<CUdevResource> groups(2);
    unsigned count = 0;
    const auto split = [&](const CUdevResource* given, unsigned capacity) {
        return client_->call<calls::gpSmResourceSplit>(groups.data(), capacity, &count, given, &rest, 0u, 0u);
    };
    CUdevResource forged{};
    EXPECT_EQ(split(nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(split(&forged, 5000), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(split(&forged, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    forged.type = CU_DEV_RESOURCE_TYPE_SM;
    forged.sm.smCount = 9999;
    for (const unsigned char number : {0, 1, 2, 255}) {  // only 1 was given, for another number of multiprocessors
        forged._internal_padding[0] = number;
        EXPECT_EQ(split(&forged, 1), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    auto descriptor = client_->mint<CUdevResourceDesc>();
    EXPECT_EQ(client_->call<calls::cuDevResourceGenerateDesc>(&descriptor, &forged, 1u),
              CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    EXPECT_EQ(client_->call<calls::cuDevResourceGenerateDesc>(&descriptor, &forged, 0u), CUDA_ERROR_INVALID_VALUE);
    for (const auto handle : wrong_handles(codec::HandleKind::resource_descriptor)) {
        auto context = client_->mint<CUcontext>();
        expect_refused<calls::gpGreenContextCreate>("a green context", handle, &context,
                                                    codec::from_wire<CUdevResourceDesc>(handle), CUdevice{0}, 1u);
    }
    for (const CUcontext context : {context_, codec::from_wire<CUcontext>(0x1234)}) {
        auto stream = client_->mint<CUstream>();
        EXPECT_EQ(client_->call<calls::gpGreenContextDestroy>(context), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(client_->call<calls::gpGreenStreamCreate>(&stream, context, 0), CUDA_ERROR_INVALID_CONTEXT);
    }
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileCalls, WrongEventsAreRefused) {
    float milliseconds_between = 0;
    const CUstream stream = client_->make_stream();
    for (const auto handle : wrong_handles(codec::HandleKind::event)) {
        const auto event = codec::from_wire<CUevent>(handle);
        expect_refused<calls::cuEventQuery>("query", handle, event);
        expect_refused<calls::cuEventSynchronize>("synchronize", handle, event);
        expect_refused<calls::cuEventRecord>("record", handle, event, stream);
        expect_refused<calls::cuEventDestroy_v2>("destroy", handle, event);
        expect_refused<calls::cuStreamWaitEvent>("wait", handle, stream, event, 0u);
        expect_refused<calls::cuEventElapsedTime>("elapsed", handle, &milliseconds_between, event, event);
    }
}

TEST_F(HostileCalls, WrongCodeHandlesAreRefused) {
    ParameterLayout layout{};
    unsigned count = 0;
    int value = 0;
    for (const auto handle : wrong_handles(codec::HandleKind::module)) {
        const auto module = codec::from_wire<CUmodule>(handle);
        auto function = client_->mint<CUfunction>();
        expect_refused<calls::cuModuleUnload>("unload", handle, module);
        expect_refused<calls::gpFunctionResolve>("resolve", handle, &function, module, "name", &layout, 1u, &count,
                                                 static_cast<int*>(nullptr), 0u);
    }
    for (const auto handle : wrong_handles(codec::HandleKind::library)) {
        const auto library = codec::from_wire<CUlibrary>(handle);
        auto kernel = client_->mint<CUkernel>();
        auto module = client_->mint<CUmodule>();
        expect_refused<calls::cuLibraryUnload>("unload", handle, library);
        auto function = client_->mint<CUfunction>();
        unsigned loaded = 0;
        expect_refused<calls::gpKernelResolve>("resolve", handle, &kernel, library, "name", KernelLoad::on_idle_gpu,
                                               &layout, 1u, &count, &function, &loaded, static_cast<int*>(nullptr), 0u);
        expect_refused<calls::gpLibraryModule>("module", handle, &module, library);
    }
    for (const auto handle : wrong_handles(codec::HandleKind::function)) {
        const auto function = codec::from_wire<CUfunction>(handle);
        const LaunchShape launch{function, 1, 1, 1, 1, 1, 1, 0, 0, 0};
        expect_refused<calls::gpLaunch>("launch", handle, &launch, static_cast<const CUlaunchAttribute*>(nullptr), 0u,
                                        static_cast<const unsigned char*>(nullptr), std::size_t{0},
                                        static_cast<CUstream>(nullptr));
        expect_refused<calls::cuFuncGetAttribute>("attribute", handle, &value, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    }
    EXPECT_TRUE(client_->alive());
}

TEST_F(HostileCalls, OtherWrongHandlesAreRefused) {
    for (const auto handle : wrong_handles(codec::HandleKind::context)) {
        if (handle != 0) {
            expect_refused<calls::gpContextSynchronize>("synchronize", handle, codec::from_wire<CUcontext>(handle));
            expect_refused<calls::gpContextDestroy>("destroy", handle, codec::from_wire<CUcontext>(handle));
            expect_refused<calls::cuCtxEnablePeerAccess>("peer", handle, codec::from_wire<CUcontext>(handle), 0u);
        }
    }
    for (const auto handle : wrong_handles(codec::HandleKind::memory_pool)) {
        CUdeviceptr address = 0;
        const auto pool = codec::from_wire<CUmemoryPool>(handle);
        expect_refused<calls::cuMemPoolDestroy>("destroy", handle, pool);
        expect_refused<calls::cuMemPoolTrimTo>("trim", handle, pool, std::size_t{0});
        expect_refused<calls::cuMemAllocFromPoolAsync>("allocate", handle, &address, std::size_t{16}, pool,
                                                       static_cast<CUstream>(nullptr));
    }
    for (const auto handle : wrong_handles(codec::HandleKind::array)) {
        expect_refused<calls::cuArrayDestroy>("destroy", handle, codec::from_wire<CUarray>(handle));
    }
    EXPECT_TRUE(client_->alive());
}

// A memory handle is the driver's own number; one that does not belong to this session must not reach the driver.
TEST_F(HostileCalls, WrongMemoryHandlesAreRefused) {
    const CUdeviceptr slab = client_->make_slab(2u << 20);
    for (const CUmemGenericAllocationHandle handle : {0ull, 1ull, 0x10ull, 0x7fff12345670ull, ~0ull}) {
        CUmemAllocationProp properties{};
        expect_refused<calls::cuMemRelease>("release", handle, handle);
        expect_refused<calls::cuMemMap>("map", handle, slab + (64u << 20), std::size_t{2u << 20}, std::size_t{0},
                                        handle, 0ull);
        expect_refused<calls::cuMemGetAllocationPropertiesFromHandle>("properties", handle, &properties, handle);
    }
    EXPECT_TRUE(client_->alive());
}

// A destroyed object's handle is invalid at once, even while work still uses the object.
TEST_F(HostileCalls, UseAfterDestroyIsRefused) {
    const CUdeviceptr slab = client_->make_slab(4u << 20);
    const CUstream blocked = client_->make_stream();
    const CUevent event = client_->make_event();
    client_->flags = 0;
    // The stream waits for data that never arrives, so everything behind it is held.
    client_->add<calls::gpCopyToDevice>(slab, std::size_t{2u << 20}, std::uint64_t{77}, std::uint64_t{0},
                                        static_cast<const unsigned char*>(nullptr), std::size_t{0}, blocked);
    client_->add<calls::cuEventRecord>(event, blocked);
    client_->add<calls::cuEventDestroy_v2>(event);
    client_->add<calls::cuEventRecord>(event, blocked);
    client_->add<calls::cuStreamDestroy_v2>(blocked);
    client_->add<calls::cuStreamDestroy_v2>(blocked);
    client_->flags = codec::kReplyWanted;
    EXPECT_EQ(client_->call<calls::cuEventRecord>(event, static_cast<CUstream>(nullptr)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(client_->call<calls::cuEventQuery>(event), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(client_->call<calls::cuStreamQuery>(blocked), CUDA_ERROR_INVALID_HANDLE);
    codec::PullNotice pull{};
    for (int piece = 0; piece < 2; ++piece) {
        ASSERT_TRUE(client_->wait_for_pull(77, pull));
        EXPECT_TRUE(client_->send_bulk(77, pull.offset, pull.bytes));
    }
    EXPECT_TRUE(client_->alive());
    EXPECT_EQ(client_->call<calls::gpContextSynchronize>(context_), CUDA_SUCCESS);
}

// A context is destroyed while work is held in it and its objects are used elsewhere.
TEST_F(HostileCalls, DestroyedContextDestroysItsObjects) {
    const CUcontext second = client_->make_another_context();
    ASSERT_NE(second, nullptr);
    const CUdeviceptr slab = client_->make_slab(4u << 20);
    const CUstream first_stream = client_->make_stream();
    client_->context = codec::to_wire(second);
    const CUevent foreign = client_->make_event();
    const CUstream second_stream = client_->make_stream();
    client_->flags = 0;
    const auto copy = [&](std::uint64_t transfer, CUstream stream) {
        client_->add<calls::gpCopyToDevice>(slab, std::size_t{1u << 20}, transfer, std::uint64_t{0},
                                            static_cast<const unsigned char*>(nullptr), std::size_t{0}, stream);
    };
    copy(1, first_stream);
    client_->flags = codec::kReplyWanted;
    const auto end = client_->add<calls::gpContextDestroy>(second);
    client_->flags = 0;
    copy(2, first_stream);
    copy(3, second_stream);
    client_->add<calls::cuEventRecord>(foreign, first_stream);
    client_->add<calls::cuEventRecord>(foreign, second_stream);
    client_->flags = codec::kReplyWanted;
    const auto waiting = client_->add<calls::cuStreamSynchronize>(second_stream);
    client_->flush();
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    client_->send_bulk(1, pull.offset, pull.bytes);
    EXPECT_EQ(client_->result_of(end), CUDA_SUCCESS);
    // A wait for a stream of the context ends with the context.
    EXPECT_TRUE(client_->result_of(waiting).has_value());
    ASSERT_TRUE(client_->wait_for_pull(2, pull));
    client_->send_bulk(2, pull.offset, pull.bytes);
    client_->context = codec::to_wire(context_);
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(first_stream), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

// A stream of another context joined a capture. It works as before once the capture's context has been destroyed.
TEST_F(HostileCalls, ContextDestroyedInACaptureReleasesJoinedStreams) {
    const CUcontext second = client_->make_another_context();
    ASSERT_NE(second, nullptr);
    const CUdeviceptr slab = client_->make_slab(4u << 20);
    const CUstream joined = client_->make_stream();
    client_->context = codec::to_wire(second);
    const CUstream first = client_->make_stream();
    const CUevent event = client_->make_event();
    EXPECT_EQ(client_->call<calls::cuStreamBeginCapture_v2>(first, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuEventRecord>(event, first), CUDA_SUCCESS);
    client_->context = codec::to_wire(context_);
    EXPECT_EQ(client_->call<calls::cuStreamWaitEvent>(joined, event, 0u), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpContextDestroy>(second), CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
    const std::vector<unsigned char> data(16, 1);
    EXPECT_EQ(client_->call<calls::gpCopyToDevice>(slab, data.size(), std::uint64_t{0}, std::uint64_t{0}, data.data(),
                                                   data.size(), joined),
              CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::cuStreamSynchronize>(joined), CUDA_SUCCESS);
}

// Work sent behind a context's destruction is refused on arrival, even while the destruction waits.
TEST_F(HostileCalls, ContextBeingDestroyedAcceptsNoWork) {
    const CUcontext second = client_->make_another_context();
    ASSERT_NE(second, nullptr);
    const CUdeviceptr slab = client_->make_slab(4u << 20);
    client_->context = codec::to_wire(second);
    const CUstream stream = client_->make_stream();
    const auto copy = [&](std::uint64_t transfer, CUstream to) {
        return client_->add<calls::gpCopyToDevice>(slab, std::size_t{1u << 20}, transfer, std::uint64_t{0},
                                                   static_cast<const unsigned char*>(nullptr), std::size_t{0}, to);
    };
    const auto before = copy(1, stream);
    const auto end = client_->add<calls::gpContextDestroy>(second);
    const auto behind = copy(2, stream);
    const auto behind_on_legacy = copy(3, nullptr);
    const auto behind_on_own = copy(4, CU_STREAM_PER_THREAD);
    client_->flush();
    for (const auto refused : {behind, behind_on_legacy, behind_on_own}) {
        EXPECT_EQ(client_->result_of(refused), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    codec::PullNotice pull{};
    ASSERT_TRUE(client_->wait_for_pull(1, pull));
    client_->send_bulk(1, pull.offset, pull.bytes);
    EXPECT_EQ(client_->result_of(before), CUDA_SUCCESS) << "earlier work is still executed";
    EXPECT_EQ(client_->result_of(end), CUDA_SUCCESS);
    client_->context = codec::to_wire(context_);
    EXPECT_TRUE(client_->alive());
}

// A handle contains its kind, so a client cannot give a handle of one kind to an object of another, nor the same handle
// twice.
TEST_F(HostileCalls, NamesOfTheWrongKindAreRefused) {
    CUDA_ARRAY_DESCRIPTOR descriptor{16, 0, CU_AD_FORMAT_FLOAT, 1};
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    for (const std::uint64_t name :
         {codec::make_handle(codec::HandleKind::module, 500), std::uint64_t{0x0ff0000000000010},
          std::uint64_t{0xfff0000000000010}, codec::make_handle(codec::HandleKind::memory_pool, 600, true),
          std::uint64_t{0x123}}) {
        auto pool = codec::from_wire<CUmemoryPool>(name);
        EXPECT_NE(client_->call<calls::cuMemPoolCreate>(&pool, &properties).value_or(CUDA_ERROR_INVALID_VALUE), 0);
        auto array = codec::from_wire<CUarray>(name);
        EXPECT_NE(client_->call<calls::cuArrayCreate_v2>(&array, &descriptor).value_or(CUDA_ERROR_INVALID_VALUE), 0);
        if (!client_->alive()) {
            client_ = std::make_unique<HostileClient>(*daemon_);
            client_->make_context();
        }
    }
    auto twice = client_->mint<CUevent>();
    EXPECT_EQ(client_->call<calls::cuEventCreate>(&twice, 0u), CUDA_SUCCESS);
    EXPECT_NE(client_->call<calls::cuEventCreate>(&twice, 0u).value_or(1), CUDA_SUCCESS);
}

// Every call with NULL for every pointer and zero for every value.
TEST_F(HostileCalls, EveryCallWithNullArgumentsIsAnsweredOrRefused) {
    const std::vector<std::byte> nothing(2048);
    bool stream_waits = false;  // set for a host function that never returns
    const auto attempt = [&](int opcode) {
        if (!client_->alive() || std::exchange(stream_waits, opcode == calls::gpHostFunction::kOpcode)) {
            client_ = std::make_unique<HostileClient>(*daemon_);
            client_->make_context();
        }
        const auto number = client_->add_record(static_cast<std::uint16_t>(opcode), nothing);
        client_->flush();
        EXPECT_TRUE(client_->answer_to(number).has_value() || client_->ended(milliseconds(0))) << opcode;
    };
    for (int opcode = 0; opcode < 650; ++opcode) {
        attempt(opcode);
    }
    for (int opcode = 0xF000; opcode < 0xF080; ++opcode) {
        attempt(opcode);
    }
}

// Every call with random bytes, small numbers and live handles in every place.
TEST_F(HostileCalls, EveryCallWithRandomArgumentsIsAnsweredOrRefused) {
    std::mt19937_64 random(42);
    std::vector<std::uint64_t> words(256);
    int ended = 0;
    const auto attempt = [&](int opcode, CUstream stream, CUdeviceptr slab) {
        for (auto& word : words) {
            const std::uint64_t choices[] = {
                0, 1, 2, random() % 64, random(), slab, codec::to_wire(stream), client_->context, 1ull << 60, ~0ull};
            word = choices[random() % std::size(choices)];
        }
        client_->add_record(static_cast<std::uint16_t>(opcode), std::as_bytes(std::span(words)));
    };
    for (int round = 0; round < 3; ++round) {
        CUstream stream = nullptr;
        CUdeviceptr slab = 0;
        for (int opcode = 0; opcode < 650 + 128; ++opcode) {
            if (stream == nullptr || !client_->flush() || !client_->alive()) {
                client_ = std::make_unique<HostileClient>(*daemon_);
                client_->make_context();
                stream = client_->make_stream();
                slab = client_->make_slab(2u << 20);
                ++ended;
            }
            attempt(opcode < 650 ? opcode : 0xF000 + opcode - 650, stream, slab);
        }
    }
    std::printf("%d sessions were ended by noise\n", ended);
}

TEST_F(HostileCalls, SlabsOutsideTheWindowOrTooLargeAreRefused) {
    constexpr std::uint64_t kMiB = 1u << 20, kBase = HostileClient::kWindowBase,
                            kEnd = kBase + HostileClient::kWindowBytes;
    const CUdeviceptr slab = client_->make_slab(4 * kMiB);
    const auto create = [&](std::uint64_t address, std::uint64_t bytes, int device = 0) {
        return client_->call<calls::gpSlabCreate>(device, address, bytes).value_or(-1);
    };
    EXPECT_EQ(create(kBase - 2 * kMiB, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kEnd - 2 * kMiB, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kEnd, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(0, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(~0ull << 21, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kBase + 64 * kMiB, 1ull << 60), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kBase + 64 * kMiB, ~0ull << 21), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kBase + 64 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kBase + 64 * kMiB, kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(kBase + 64 * kMiB + 512, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_NE(create(kBase + 64 * kMiB, 2 * kMiB, 77), CUDA_SUCCESS);
    EXPECT_NE(create(kBase + 64 * kMiB, 2 * kMiB, -1), CUDA_SUCCESS);
    // Overlapping slabs: the same one, its middle, across its end, around it.
    EXPECT_EQ(create(slab, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(slab + 2 * kMiB, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(create(slab + 2 * kMiB, 8 * kMiB), CUDA_ERROR_INVALID_VALUE);
    // Inside the window, but larger than the device's memory.
    EXPECT_EQ(create(kBase + (4ull << 30), 60ull << 30), CUDA_ERROR_OUT_OF_MEMORY);
    // The same for slabs prepared in advance, whose result arrives only as a notice.
    const auto prepare = [&](std::uint64_t address, std::uint64_t bytes, int device = 0) {
        EXPECT_EQ(client_->call<calls::gpSlabPrepare>(device, address, bytes), CUDA_SUCCESS);
        return client_->prepared().empty() ? -1 : client_->prepared().back().result;
    };
    EXPECT_EQ(prepare(slab, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(prepare(kEnd, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(prepare(kBase + (4ull << 30), 60ull << 30), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_NE(prepare(kBase + 64 * kMiB, 2 * kMiB, 77), CUDA_SUCCESS);
    EXPECT_EQ(prepare(kBase + 64 * kMiB, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(client_->prepared().back().address, kBase + 64 * kMiB);
    EXPECT_EQ(client_->prepared().size(), 5u);
    EXPECT_EQ(create(kBase + 64 * kMiB, 2 * kMiB), CUDA_ERROR_INVALID_VALUE) << "the slab exists";
    EXPECT_EQ(client_->call<calls::gpSlabDestroy>(kBase + 64 * kMiB, std::size_t{2 * kMiB}), CUDA_SUCCESS);
    // Ranges that are not exactly a slab's.
    EXPECT_EQ(client_->call<calls::gpSlabDestroy>(slab, std::size_t{2 * kMiB}), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(client_->call<calls::gpSlabDestroy>(slab + 2 * kMiB, std::size_t{2 * kMiB}), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(client_->call<calls::gpSlabDestroy>(slab, std::size_t{4 * kMiB}), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpSlabDestroy>(slab, std::size_t{4 * kMiB}), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr address = 0;
    EXPECT_EQ(client_->call<calls::cuMemAllocAsync>(&address, std::size_t{1} << 60, static_cast<CUstream>(nullptr)),
              CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(client_->alive());
}

// A client that only polls events and never waits must still learn of failures before them.
TEST_F(HostileCalls, WatchedEventReportsEarlierFailures) {
    const CUstream stream = client_->make_stream();
    const CUevent event = client_->make_event();
    const auto watched = [&](std::uint64_t record) {
        client_->flags = 0;
        if (record < 4) {
            client_->add<calls::cuEventRecord>(event, stream);
            client_->add<calls::gpEventWatch>(event, record);
        } else {
            client_->add<calls::gpEventRecord>(event, stream, record);
        }
        client_->flags = codec::kReplyWanted;
        EXPECT_TRUE(client_->alive());
        for (int i = 0; i < 100 && client_->ended_events().size() < record; ++i) {
            client_->read_for(milliseconds(50));
        }
        return client_->ended_events().empty() ? -1 : client_->ended_events().back().result;
    };
    for (const std::uint64_t first : {1u, 4u}) {  // watched by a call of its own, and together with the record
        EXPECT_EQ(watched(first), CUDA_SUCCESS);
        client_->flags = 0;
        client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0x1000}, static_cast<unsigned char>(1), std::size_t{16},
                                             stream);
        EXPECT_EQ(watched(first + 1), CUDA_ERROR_NOT_READY) << "makes the client query the worker";
        const std::uint64_t number = client_->add<calls::cuEventQuery>(event);
        client_->flush();
        const auto asked = client_->answer_to(number);
        ASSERT_TRUE(asked.has_value());
        EXPECT_EQ(asked->header.deferred, CUDA_ERROR_INVALID_VALUE) << "the query returns the failure";
        EXPECT_EQ(watched(first + 2), CUDA_SUCCESS) << "a failure is reported once";
    }
    EXPECT_EQ(client_->deferred_errors(), 2u);
    client_->flags = 0;
    client_->add<calls::gpEventRecord>(event, codec::from_wire<CUstream>(0x12345), std::uint64_t{7});
    client_->flags = codec::kReplyWanted;
    EXPECT_TRUE(client_->alive());
    for (int i = 0; i < 100 && client_->ended_events().size() < 7; ++i) {
        client_->read_for(milliseconds(50));
    }
    ASSERT_EQ(client_->ended_events().size(), 7u) << "a failed record must also be reported";
    EXPECT_NE(client_->ended_events().back().result, CUDA_SUCCESS);
}

// A wait reports failures of the context that it waits for, not of the thread's current context.
TEST_F(HostileCalls, WaitForAnotherContextReportsItsFailures) {
    const std::uint64_t first = client_->context;
    const CUcontext another = client_->make_another_context();
    ASSERT_NE(another, nullptr);
    client_->context = codec::to_wire(another);
    client_->flags = 0;
    client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0x1000}, static_cast<unsigned char>(1), std::size_t{16},
                                         static_cast<CUstream>(nullptr));
    client_->context = first;
    client_->flags = codec::kReplyWanted;
    const auto waited_for = [&](CUcontext context) {
        const std::uint64_t number = client_->add<calls::gpContextSynchronize>(context);
        client_->flush();
        const auto answer = client_->answer_to(number);
        return answer ? answer->header : codec::ReplyHeader{};
    };
    EXPECT_EQ(waited_for(codec::from_wire<CUcontext>(first)).deferred, CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpContextWait>(codec::from_wire<CUcontext>(first)), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpContextWait>(another), CUDA_ERROR_NOT_READY) << "gpContextWait returns no failure";
    const codec::ReplyHeader reported = waited_for(another);
    EXPECT_EQ(reported.deferred, CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(reported.other_context, 1u) << "it is not the current context's";
    EXPECT_EQ(waited_for(another).deferred, CUDA_SUCCESS) << "a failure is reported once";
    EXPECT_EQ(client_->call<calls::gpContextWait>(another), CUDA_SUCCESS);
}

// The client treats a wait for the legacy stream as one for all streams, so it must report failures of destroyed
// streams as well.
TEST_F(HostileCalls, WaitForTheLegacyStreamReportsADestroyedStreamsFailure) {
    const CUstream stream = client_->make_stream();
    client_->flags = 0;
    client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0x1000}, static_cast<unsigned char>(1), std::size_t{16}, stream);
    client_->add<calls::cuStreamDestroy_v2>(stream);
    client_->flags = codec::kReplyWanted;
    int reported = CUDA_SUCCESS;
    for (int i = 0; i < 100 && reported == CUDA_SUCCESS; ++i) {  // the stream ends asynchronously
        const std::uint64_t number = client_->add<calls::cuStreamSynchronize>(static_cast<CUstream>(nullptr));
        client_->flush();
        const auto answer = client_->answer_to(number);
        ASSERT_TRUE(answer.has_value());
        reported = answer->header.deferred;
    }
    EXPECT_EQ(reported, CUDA_ERROR_INVALID_VALUE);
}

// A wait for an event whose stream is destroyed reports that stream's failures only. Those of other streams are left to
// the waits for them.
TEST_F(HostileCalls, WaitForAnEventOfADestroyedStreamLeavesOtherFailures) {
    const CUstream gone = client_->make_stream(), failing = client_->make_stream();
    const CUevent event = client_->make_event();
    client_->flags = 0;
    client_->add<calls::cuEventRecord>(event, gone);
    client_->flags = codec::kReplyWanted;
    EXPECT_EQ(client_->call<calls::cuStreamDestroy_v2>(gone), CUDA_SUCCESS);
    EXPECT_EQ(client_->call<calls::gpContextSynchronize>(context_), CUDA_SUCCESS);  // the stream has ended by now
    client_->flags = 0;
    client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0x1000}, static_cast<unsigned char>(1), std::size_t{16}, failing);
    client_->flags = codec::kReplyWanted;
    const auto deferred = [&](std::uint64_t number) {
        client_->flush();
        const auto answer = client_->answer_to(number);
        return answer ? answer->header.deferred : -1;
    };
    EXPECT_EQ(deferred(client_->add<calls::cuEventSynchronize>(event)), CUDA_SUCCESS);
    EXPECT_EQ(deferred(client_->add<calls::cuStreamSynchronize>(failing)), CUDA_ERROR_INVALID_VALUE);
}

// A failure belongs to the context of its stream, whatever the sending thread's current context is.
TEST_F(HostileCalls, FailureIsReportedForTheContextOfItsStream) {
    const std::uint64_t first = client_->context;
    const CUcontext another = client_->make_another_context();
    ASSERT_NE(another, nullptr);
    client_->context = codec::to_wire(another);
    const CUstream stream = client_->make_stream();
    client_->context = first;
    client_->flags = 0;
    client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0x1000}, static_cast<unsigned char>(1), std::size_t{16}, stream);
    client_->flags = codec::kReplyWanted;
    EXPECT_TRUE(client_->alive());
    ASSERT_EQ(client_->deferred_errors(), 1u);
    EXPECT_EQ(client_->errors().front().context, codec::to_wire(another));
}

// The same for streams. Repeated watches before the notice give one notice.
TEST_F(HostileCalls, WatchedStreamReportsEarlierFailures) {
    const CUstream stream = client_->make_stream();
    const auto reported = [&](std::size_t count) {
        client_->flags = codec::kReplyWanted;
        for (int i = 0; i < 100 && client_->ended_streams().size() < count; ++i) {
            EXPECT_TRUE(client_->alive());
            client_->read_for(milliseconds(50));
        }
        EXPECT_TRUE(client_->alive());
        client_->flags = 0;
        EXPECT_EQ(client_->ended_streams().size(), count);
        return client_->ended_streams().empty() ? -1 : client_->ended_streams().back().result;
    };
    client_->flags = 0;
    client_->add<calls::gpStreamWatch>(stream);
    EXPECT_EQ(reported(1), CUDA_SUCCESS);
    EXPECT_EQ(client_->ended_streams().back().stream, codec::to_wire(stream));
    client_->add<calls::cuMemsetD8Async>(CUdeviceptr{0x1000}, static_cast<unsigned char>(1), std::size_t{16}, stream);
    client_->add<calls::gpStreamWatch>(stream);
    EXPECT_EQ(reported(2), CUDA_ERROR_NOT_READY) << "makes the client query the worker";
    constexpr std::uint64_t kTicket = 1;
    client_->add<calls::gpHostFunction>(kTicket, stream);
    for (int i = 0; i < 1000; ++i) {
        client_->add<calls::gpStreamWatch>(stream);
    }
    client_->add<calls::gpHostFunctionDone>(kTicket);
    EXPECT_EQ(reported(3), CUDA_ERROR_NOT_READY) << "the failure was not reported yet";
}

TEST_F(HostileCalls, CopiesBeyondMemoryAreRefused) {
    const CUdeviceptr slab = client_->make_slab(2u << 20);
    const CUstream stream = client_->make_stream();
    const unsigned char byte = 1;
    const auto gone = [&](CUdeviceptr at) {
        EXPECT_NE(client_
                      ->call<calls::gpCopyToDevice>(at, std::size_t{1}, std::uint64_t{0}, std::uint64_t{0}, &byte,
                                                    std::size_t{1}, stream)
                      .value_or(CUDA_SUCCESS),
                  CUDA_SUCCESS);
        EXPECT_NE(client_->call<calls::gpCopyFromDevice>(at, std::size_t{4096}, std::uint64_t{5}, stream)
                      .value_or(CUDA_SUCCESS),
                  CUDA_SUCCESS);
        EXPECT_NE(client_->call<calls::cuMemsetD8Async>(at, byte, std::size_t{16}, stream).value_or(CUDA_SUCCESS),
                  CUDA_SUCCESS);
    };
    gone(0);
    gone(0x1000);
    gone(slab + (2u << 20));
    gone(HostileClient::kWindowBase + HostileClient::kWindowBytes - 1);
    gone(~0ull - 8);
    // Addresses of the worker's own memory must not be readable.
    gone(reinterpret_cast<CUdeviceptr>(&byte));
    EXPECT_NE(client_->call<calls::gpCopyFromDevice>(slab, std::size_t{4u << 20}, std::uint64_t{6}, stream)
                  .value_or(CUDA_SUCCESS),
              CUDA_SUCCESS);
    EXPECT_NE(client_->call<calls::gpCopyFromDevice>(slab, std::size_t{1} << 60, std::uint64_t{7}, stream)
                  .value_or(CUDA_SUCCESS),
              CUDA_SUCCESS);
    EXPECT_NE(client_->call<calls::cuMemcpyDtoDAsync_v2>(slab, slab + 4096, std::size_t{1} << 60, stream)
                  .value_or(CUDA_SUCCESS),
              CUDA_SUCCESS);
    EXPECT_TRUE(client_->alive());
}

}  // namespace
}  // namespace gpupool::test
