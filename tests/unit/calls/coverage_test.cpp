// docs/coverage.md must equal the output of `gpupool coverage --markdown`, and contain every driver symbol.
#include "client/cli/coverage.h"

#include <gtest/gtest.h>

#include "protocol/calls/table.h"
#include "tests/unit/calls/driver_symbols.h"

namespace gpupool::test {
namespace {

TEST(Coverage, DocumentIsUpToDate) {
    const std::string document = read_file(GPUPOOL_DOCS "/coverage.md"), now = cli::coverage_markdown();
    EXPECT_TRUE(document == now) << "docs/coverage.md is not what the table and the evidence say. Write it again:\n"
                                    "    gpupool coverage --markdown > docs/coverage.md";
}

TEST(Coverage, NamesEverySymbolOnce) {
    const std::string text = cli::coverage_markdown();
    for (const DriverSymbol& symbol : driver_symbols()) {
        const std::string quoted = "`" + symbol.symbol + "`";
        const std::size_t at = text.find(quoted);
        EXPECT_NE(at, std::string::npos) << symbol.symbol;
        EXPECT_EQ(text.find(quoted, at + 1), std::string::npos) << symbol.symbol;
    }
    EXPECT_NE(text.find("637 symbols: "), std::string::npos);
}

// Evidence of a symbol that does not exist or is refused is a mistake, either in the table or in the evidence.
TEST(Coverage, EvidenceNamesOnlySupportedCalls) {
    static constexpr std::string_view kSymbols[] = {
#define GP_EVIDENCE(symbol, programs) #symbol,
#include "protocol/calls/evidence.def"
#undef GP_EVIDENCE
        ""};
    for (const std::string_view symbol : kSymbols) {
        if (symbol.empty()) {
            continue;
        }
        const calls::CallInfo* found = nullptr;
        for (const calls::CallInfo& call : calls::all_calls()) {
            found = call.name == symbol ? &call : found;
        }
        ASSERT_NE(found, nullptr) << symbol;
        EXPECT_NE(found->delivery, calls::Delivery::refused) << symbol;
    }
}

// A call that was seen to work, that does not exist or that is refused cannot be one that fails natively.
TEST(Coverage, NativeFailuresHaveTheirOwnState) {
    static constexpr std::string_view kSymbols[] = {
#define GP_NATIVE_FAILURE(symbol, error, program) #symbol,
#include "protocol/calls/native_failures.def"
#undef GP_NATIVE_FAILURE
    };
    const std::string text = cli::coverage_markdown();
    for (const std::string_view symbol : kSymbols) {
        const std::size_t row = text.find("| `" + std::string(symbol) + "` |");
        ASSERT_NE(row, std::string::npos) << symbol;
        EXPECT_NE(text.substr(row, text.find('\n', row) - row).find("| fails natively ("), std::string::npos) << symbol;
    }
}

TEST(Coverage, TextListsAllSymbols) {
    const std::string text = cli::coverage_text();
    EXPECT_NE(text.find("cuGetProcAddress_v2"), std::string::npos);
    EXPECT_NE(text.find("refused ("), std::string::npos);
    EXPECT_NE(text.find("637 symbols: "), std::string::npos);
}

}  // namespace
}  // namespace gpupool::test
