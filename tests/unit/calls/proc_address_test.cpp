// cuGetProcAddress over every name, version and flag, compared with a real driver's symbols and the rules measured on
// it: of a name's symbols, the one with the highest version that is not above the requested one; with the per-thread
// flag, only the per-thread variants where the name has any.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/unit/calls/driver_symbols.h"

namespace gpupool::test {
namespace {

using First = CUresult (*)(const char*, void**, int, cuuint64_t);
using Second = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

constexpr int kDriverVersion = 13000;  // the client's version, since there is no server to ask
constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

class ProcAddress : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        setenv("GPUPOOL_SERVER", "127.0.0.1:1", 1);  // an address without a server
        setenv("GPUPOOL_CONFIG", "/dev/null", 1);
        library = dlopen(GPUPOOL_CLIENT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library, nullptr) << dlerror();
        for (const DriverSymbol& symbol : driver_symbols()) {
            by_name[symbol.name].push_back(symbol);
            // Results change only at the listed versions, so it suffices to test just before, at and after each.
            for (const int version : {symbol.since - 10, symbol.since, symbol.since + 10}) {
                if (version <= kDriverVersion) {
                    versions.insert(version);
                }
            }
        }
    }
    static void* address_of(const std::string& symbol) { return dlsym(library, symbol.c_str()); }

    // The expected symbol by the rules; empty when there is none.
    static std::string expected(const std::vector<DriverSymbol>& symbols, int version, cuuint64_t flags) {
        bool per_thread = false;
        for (const DriverSymbol& symbol : symbols) {
            per_thread = per_thread || ((flags & kPerThread) != 0 && symbol.per_thread);
        }
        const DriverSymbol* best = nullptr;
        for (const DriverSymbol& symbol : symbols) {
            if (symbol.per_thread == per_thread && symbol.since <= version &&
                (best == nullptr || symbol.since > best->since)) {
                best = &symbol;
            }
        }
        return best == nullptr ? "" : best->symbol;
    }

    static inline void* library = nullptr;
    static inline std::map<std::string, std::vector<DriverSymbol>> by_name;
    static inline std::set<int> versions;
};

TEST_F(ProcAddress, EveryNameVersionAndFlag) {
    const auto first = reinterpret_cast<First>(address_of("cuGetProcAddress"));
    const auto second = reinterpret_cast<Second>(address_of("cuGetProcAddress_v2"));
    ASSERT_TRUE(first != nullptr && second != nullptr);
    std::size_t found = 0;
    for (const auto& [name, symbols] : by_name) {
        for (const int version : versions) {
            for (const cuuint64_t flags : {0, 1, 2, 3}) {
                const std::string symbol = expected(symbols, version, flags);
                void* const wanted = symbol.empty() ? nullptr : address_of(symbol);
                void *by_first = &by_first, *by_second = &by_second;
                auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;  // a value that no name here returns
                const CUresult result = first(name.c_str(), &by_first, version, flags);
                const auto what = [&, &name = name] {
                    return name + "@" + std::to_string(version) + " flags " + std::to_string(flags);
                };
                ASSERT_EQ(second(name.c_str(), &by_second, version, flags, &status), CUDA_SUCCESS) << what();
                ASSERT_EQ(by_second, wanted) << what() << " should be " << symbol;
                ASSERT_EQ(by_first, wanted) << what() << " should be " << symbol;
                ASSERT_EQ(result, symbol.empty() ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS) << what();
                ASSERT_EQ(status,
                          symbol.empty() ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SUCCESS)
                    << what();
                found += symbol.empty() ? 0 : 1;
            }
        }
    }
    EXPECT_GT(found, 50'000u) << "the loop tested too few symbols";
}

TEST_F(ProcAddress, RefusesNewerVersionsAndUnknownFlagsWithoutWritingOutputs) {
    const auto first = reinterpret_cast<First>(address_of("cuGetProcAddress"));
    const auto second = reinterpret_cast<Second>(address_of("cuGetProcAddress_v2"));
    for (const auto& [version, flags] : {std::pair<int, cuuint64_t>{13010, 0}, {13000, 4}, {13000, 1ull << 40}}) {
        void* address = &address;
        auto status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;  // a value that none of these calls returns
        EXPECT_EQ(first("cuInit", &address, version, flags), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(second("cuInit", &address, version, flags, &status), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(address, &address);
        EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    }
}

TEST_F(ProcAddress, SymbolsWithSuffixesAndUnknownNamesAreNotFound) {
    const auto first = reinterpret_cast<First>(address_of("cuGetProcAddress"));
    const auto second = reinterpret_cast<Second>(address_of("cuGetProcAddress_v2"));
    std::vector<std::string> names = {"", "cuNoSuchFunction", "cuMemAllo", "cuMemAllocX"};
    for (const auto& [name, symbols] : by_name) {
        for (const DriverSymbol& symbol : symbols) {
            if (!by_name.contains(symbol.symbol)) {
                names.push_back(symbol.symbol);  // a suffix makes it an unknown name
            }
        }
    }
    for (const std::string& name : names) {
        void *by_first = &by_first, *by_second = &by_second;
        auto status = CU_GET_PROC_ADDRESS_SUCCESS;
        EXPECT_EQ(first(name.c_str(), &by_first, 13000, 0), CUDA_ERROR_NOT_FOUND) << name;
        EXPECT_EQ(by_first, nullptr) << name;
        EXPECT_EQ(second(name.c_str(), &by_second, 13000, 0, &status), CUDA_SUCCESS) << name;
        EXPECT_EQ(by_second, nullptr) << name;
        EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) << name;
        EXPECT_EQ(second(name.c_str(), &by_second, 13000, 0, nullptr), CUDA_SUCCESS) << name;
    }
}

}  // namespace
}  // namespace gpupool::test
