// Checks the table's (base name, since) against cudaTypedefs.h at compile time: the function of each line has the type
// that PFN_<base>_v<since> names. CMakeLists.txt lists the existing typedefs.
//
// cuda_api.h makes cuda.h declare the old versions beside the new ones, so it must be included first.
// clang-format off
#include "protocol/calls/cuda_api.h"
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
// clang-format on
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>

#include "protocol/calls/call.h"
#include "tests/unit/calls/driver_symbols.h"

namespace gpupool::test {
namespace {

template <std::size_t Size>
struct Text {
    char characters[Size]{};
    constexpr Text(const char (&text)[Size]) { std::copy_n(text, Size, characters); }
};

// The suffix is "", "_ptds" or "_ptsz".
template <Text Base, int Since, Text Suffix>
struct Typedef {
    using type = void;
};
// The table contains deprecated functions as well.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define GP_TYPEDEF(base, since, suffix)             \
    template <>                                     \
    struct Typedef<#base, since, #suffix> {         \
        using type = PFN_##base##_v##since##suffix; \
    };
#include "typedefs.inc"
#undef GP_TYPEDEF

constexpr const char* kWithoutTypedef[] = {"cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"};

template <class Function, class Expected>
constexpr bool agrees(std::string_view name) {
    if (std::is_void_v<Expected>) {
        return std::find(std::begin(kWithoutTypedef), std::end(kWithoutTypedef), name) != std::end(kWithoutTypedef);
    }
    return std::is_same_v<Function, Expected>;
}

#define GP_CALL(op, symbol, base, since, ...)                                            \
    static_assert(agrees<decltype(&::symbol), Typedef<#base, since, "">::type>(#symbol), \
                  #symbol ": cudaTypedefs.h has no PFN_" #base "_v" #since " of the function's type");
#define GP_PER_THREAD(symbol, suffix, since, ...)                                                               \
    static_assert(                                                                                              \
        []<std::size_t... Index>(std::index_sequence<Index...>) {                                               \
            constexpr char kBase[] = {calls::symbol::kBaseName[Index]..., '\0'};                                \
            return agrees<decltype(&::symbol##suffix), typename Typedef<kBase, since, #suffix>::type>(#symbol); \
        }(std::make_index_sequence<calls::symbol::kBaseName.size()>()),                                         \
        #symbol #suffix ": cudaTypedefs.h has no PFN of this base name and version of the function's type");
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD

// The converse: every typedef belongs to a line.
TEST(Typedefs, EveryTypedefHasALineOfTheTable) {
    const std::set<std::string> from_header = {
#define GP_TYPEDEF(base, since, suffix) #base "_v" #since #suffix,
#include "typedefs.inc"
#undef GP_TYPEDEF
    };
    std::set<std::string> from_table = {
#define GP_CALL(op, symbol, base, since, ...) #base "_v" #since,
#define GP_PER_THREAD(symbol, suffix, since, ...) std::string(calls::symbol::kBaseName) + "_v" #since #suffix,
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    };
    for (const char* name : kWithoutTypedef) {
        from_table.erase(std::string(name) + "_v4000");
    }
    EXPECT_EQ(difference(from_header, from_table), "");
}

}  // namespace
}  // namespace gpupool::test
