// The sizes and slots of the tables, as NVIDIA's libraries were observed to use them.
#include <gtest/gtest.h>

#include <string>

#include "protocol/export_tables/registry.h"
#include "tests/unit/export_tables/fake_view.h"

namespace gpupool::client::export_tables::test {

const void* const* table(const char* uuid) {
    CUuuid id{};
    std::size_t digits = 0;
    for (const char* c = uuid; *c != '\0'; ++c) {
        if (*c == '-') {
            continue;
        }
        const int value = *c >= 'a' ? *c - 'a' + 10 : *c - '0';
        auto& byte = id.bytes[digits / 2];
        byte = static_cast<char>(static_cast<unsigned char>(byte) << 4 | value);
        ++digits;
    }
    return static_cast<const void* const*>(find(id));
}

namespace {

struct Expected {
    const char* id;
    std::size_t bytes;
};

// The sizes of driver 580's tables (0x68 or more for the cache's).
constexpr Expected kSizedTables[] = {
    {kCudartInterfaceId, 0x68}, {kCallbackHooksId, 0x38},     {kToolsTlsId, 0x18},      {kContextChecksId, 0x78},
    {kIntegrityCheckId, 0x18},  {kToolsIdentifiersId, 0x2e8}, {kToolsModulesId, 0x318}, {kComputeCacheId, 14 * 8},
};

TEST(Tables, StateTheirSizes) {
    for (const auto& [id, bytes] : kSizedTables) {
        const void* const* slots = table(id);
        ASSERT_NE(slots, nullptr) << id;
        EXPECT_EQ(reinterpret_cast<std::size_t>(slots[0]), bytes) << id;
    }
}

TEST(Tables, KeepTheirAddress) {
    for (const auto& [id, bytes] : kSizedTables) {
        EXPECT_EQ(table(id), table(id));
    }
    EXPECT_EQ(table(kContextStorageId), table(kContextStorageId));
}

TEST(Tables, OthersAreUnknown) {
    for (const char* id : {"f8cff951-2146-8b4e-b9e2-fb469e7c0dd9", "da9151d3-3ae6-cc41-a5c0-4f26d533e328",
                           "00000000-0000-0000-0000-000000000000", "6bd5fb6c-5bf4-e74a-8987-d93912fd9df8"}) {
        EXPECT_EQ(table(id), nullptr) << id;
    }
}

TEST(Tables, OnlyDocumentedSlotsAreNull) {
    for (const auto& [id, bytes] : kSizedTables) {
        for (std::size_t i = 1; i < bytes / sizeof(void*); ++i) {
            const bool null_in_the_driver = std::string(id) == kCudartInterfaceId && i == 10;
            EXPECT_EQ(table(id)[i] == nullptr, null_in_the_driver) << id << " slot " << i;
        }
    }
    EXPECT_EQ(table(kContextStorageId)[3], nullptr);
}

TEST(Tables, UnlistedSlotsRefuse) {
    EXPECT_EQ((function<CUresult()>(kCudartInterfaceId, 4)()), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ((function<CUresult(int, void*)>(kToolsIdentifiersId, 92)(1, nullptr)), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ((function<CUresult()>(kToolsModulesId, 1)()), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ((function<CUresult()>(kIntegrityCheckId, 2)()), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ((function<CUresult(CUdevice, const std::uint64_t*)>(kCudartInterfaceId, 3)(0, nullptr)),
              CUDA_ERROR_NOT_SUPPORTED);
}

TEST(Tables, NothingWorksWithoutAClient) {
    CUcontext context = nullptr;
    EXPECT_EQ((function<CUresult(CUcontext*, CUdevice)>(kCudartInterfaceId, 2)(&context, 0)),
              CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ((function<CUresult(CUcontext*)>(kToolsTlsId, 2)(&context)), CUDA_ERROR_NOT_INITIALIZED);
    void* value = nullptr;
    EXPECT_EQ((function<CUresult(void**, CUcontext, void*)>(kContextStorageId, 2)(&value, nullptr, nullptr)),
              CUDA_ERROR_NOT_INITIALIZED);
    std::uint8_t answer[16];
    EXPECT_EQ((function<CUresult(std::uint32_t, std::uint64_t, std::uint8_t*)>(kIntegrityCheckId, 1)(13002, 0, answer)),
              CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ((function<int(CUcontext, CUmodule, FunctionVisitor, void*)>(kToolsModulesId, 7)(nullptr, nullptr, nullptr,
                                                                                              nullptr)),
              0);
}

TEST(CudartInterface, ReturnsThePrimaryContext) {
    FakeView client;
    CUcontext context = nullptr;
    auto* primary = function<CUresult(CUcontext*, CUdevice)>(kCudartInterfaceId, 2);
    EXPECT_EQ(primary(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(context, handle<CUcontext>(0x1000));
    EXPECT_EQ(primary(&context, 1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(primary(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST(CudartInterface, LoadsModulesInAllItsForms) {
    FakeView client;
    CUmodule module = nullptr;
    int image = 0;
    EXPECT_EQ((function<CUresult(CUmodule*, const void*)>(kCudartInterfaceId, 1)(&module, &image)), CUDA_SUCCESS);
    EXPECT_EQ((function<CUresult(CUmodule*, const void*, void*, void*, unsigned)>(kCudartInterfaceId, 6)(
                  &module, &image, nullptr, nullptr, 0)),
              CUDA_SUCCESS);
    EXPECT_EQ((function<CUresult(const void*, CUmodule*, void*, void*, unsigned)>(kCudartInterfaceId, 8)(
                  &image, &module, nullptr, nullptr, 0)),
              CUDA_SUCCESS);
    EXPECT_EQ(module, handle<CUmodule>(0x2003));
    EXPECT_EQ(client.loaded, (std::vector<const void*>{&image, &image, &image}));
    EXPECT_EQ((function<CUresult()>(kCudartInterfaceId, 12)()), CUDA_SUCCESS);
    function<void(std::size_t)>(kCudartInterfaceId, 7)(1);
}

TEST(CallbackHooks, HaveEnoughZeroWords) {
    for (const auto& [slot, least] : {std::pair<std::size_t, std::size_t>{2, 552}, {6, 14}}) {
        std::uint32_t* words = nullptr;
        std::size_t count = 0;
        function<void(std::uint32_t**, std::size_t*)>(kCallbackHooksId, slot)(&words, &count);
        ASSERT_NE(words, nullptr);
        ASSERT_GE(count, least);
        for (std::size_t i = 0; i < count; ++i) {
            EXPECT_EQ(words[i], 0u);
        }
    }
}

TEST(CallbackHooks, KnowIdentities) {
    FakeView client;
    std::uint64_t id = 0;
    EXPECT_EQ((function<CUresult(CUcontext, CUstream, std::uint64_t*)>(kCallbackHooksId, 3)(nullptr,
                                                                                            handle<CUstream>(7), &id)),
              CUDA_SUCCESS);
    EXPECT_EQ(id, 21u);
    EXPECT_EQ((function<CUresult(CUcontext, std::uint64_t*)>(kCallbackHooksId, 4)(handle<CUcontext>(8), &id)),
              CUDA_SUCCESS);
    EXPECT_EQ(id, 9u);
}

TEST(ContextChecks, FindNothingSpecial) {
    std::uint32_t flag = 7;
    CUcontext other = handle<CUcontext>(5);
    auto* check = function<CUresult(CUcontext, std::uint32_t*, CUcontext*)>(kContextChecksId, 2);
    EXPECT_EQ(check(handle<CUcontext>(1), &flag, &other), CUDA_SUCCESS);
    EXPECT_EQ(flag, 0u);
    EXPECT_EQ(other, handle<CUcontext>(5));
    EXPECT_EQ((function<std::uint32_t()>(kContextChecksId, 3)()), 0u);
}

TEST(Tools, IdentifyContextsAndStreams) {
    FakeView client;
    client.current = handle<CUcontext>(0x40);
    CUcontext context = nullptr;
    EXPECT_EQ((function<CUresult(CUcontext*)>(kToolsTlsId, 2)(&context)), CUDA_SUCCESS);
    EXPECT_EQ(context, client.current);
    std::uint64_t id = 0;
    EXPECT_EQ((function<CUresult(CUcontext, std::uint64_t*)>(kToolsIdentifiersId, 4)(nullptr, &id)), CUDA_SUCCESS);
    EXPECT_EQ(id, 0x41u);
    auto* resolve = function<CUresult(CUcontext, CUstream, void**, int)>(kToolsIdentifiersId, 51);
    auto* identify = function<CUresult(CUcontext, void*, std::uint64_t*)>(kToolsIdentifiersId, 39);
    void* object = nullptr;
    EXPECT_EQ(resolve(context, nullptr, &object, 0), CUDA_SUCCESS);
    EXPECT_EQ(identify(context, object, &id), CUDA_SUCCESS);
    EXPECT_EQ(id, 0x800u);
    EXPECT_EQ(resolve(context, handle<CUstream>(2), &object, 1), CUDA_SUCCESS);
    EXPECT_EQ(identify(context, object, &id), CUDA_SUCCESS);
    EXPECT_EQ(id, 0xA04u);
    EXPECT_EQ(resolve(context, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(identify(context, object, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST(Tools, VisitAModulesKernels) {
    FakeView client;
    std::vector<CUfunction> seen;
    auto* visit_all = function<int(CUcontext, CUmodule, FunctionVisitor, void*)>(kToolsModulesId, 7);
    const FunctionVisitor collect = [](void* user, CUfunction function, const char*) {
        static_cast<std::vector<CUfunction>*>(user)->push_back(function);
    };
    EXPECT_EQ(visit_all(nullptr, handle<CUmodule>(0x2001), collect, &seen), 2);
    EXPECT_EQ(seen, (std::vector<CUfunction>{handle<CUfunction>(0x3001), handle<CUfunction>(0x3002)}));
    EXPECT_EQ(visit_all(nullptr, handle<CUmodule>(0x2001), nullptr, &seen), 0);
}

TEST(ComputeCache, IsUnavailable) {
    void* a = nullptr;
    void* b = nullptr;
    EXPECT_NE((function<int(void**, void**)>(kComputeCacheId, 4)(&a, &b)), 0);
    EXPECT_EQ(a, nullptr);
    EXPECT_NE((function<int()>(kComputeCacheId, 13)()), 0);
}

}  // namespace
}  // namespace gpupool::client::export_tables::test
