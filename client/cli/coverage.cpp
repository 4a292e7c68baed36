// gpupool coverage: the coverage table, for a terminal or as docs/coverage.md.
#include "client/cli/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "client/cli/command.h"
#include "protocol/calls/table.h"

namespace gpupool::cli {

namespace {

constexpr std::size_t kNamesShown = 3;

// By symbol: the programs that passed and in which the call succeeded, separated by spaces.
constexpr std::pair<std::string_view, std::string_view> kEvidence[] = {
#define GP_EVIDENCE(symbol, programs) {#symbol, programs},
#include "protocol/calls/evidence.def"
#undef GP_EVIDENCE
    {"", ""},
};

// Calls that cannot succeed natively either.
struct NativeFailure {
    std::string_view symbol, error, program;
};
constexpr NativeFailure kNativeFailures[] = {
#define GP_NATIVE_FAILURE(symbol, error, program) {#symbol, error, program},
#include "protocol/calls/native_failures.def"
#undef GP_NATIVE_FAILURE
};

struct Row {
    std::string_view symbol;
    std::string per_thread;
    std::string delivery;
    std::string state;
};

struct Coverage {
    std::vector<Row> rows;
    std::size_t symbols = 0, work = 0, fail_natively = 0, untested = 0, refused = 0;
};

std::string program_list(std::string_view programs) {
    std::vector<std::string_view> names;
    while (!programs.empty()) {
        const std::size_t end = programs.find(' ');
        names.push_back(programs.substr(0, end));
        programs.remove_prefix(end == std::string_view::npos ? programs.size() : end + 1);
    }
    // Programs that ran on a real GPU first: they are stronger evidence, and must not be among those omitted.
    std::stable_partition(names.begin(), names.end(),
                          [](std::string_view name) { return !name.ends_with("@software"); });
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) {
        text += (i == 0 ? "" : ", ") + std::string(names[i]);
    }
    return names.size() <= kNamesShown ? text : text + fmt::format(" and {} more", names.size() - kNamesShown);
}

Coverage coverage() {
    std::unordered_map<std::string_view, std::string_view> evidence(std::begin(kEvidence), std::end(kEvidence));
    Coverage all;
    for (const calls::CallInfo& call : calls::all_calls()) {
        if (call.base_name.empty()) {
            continue;  // gpupool's own call
        }
        Row row{call.name, "", std::string(calls::to_string(call.delivery)), ""};
        if (call.composed) {
            row.delivery += ", composed";
        } else if (call.handled && call.delivery != calls::Delivery::deferred) {
            row.delivery += ", handled";
        }
        std::size_t forms = 1;
        if (call.per_thread_suffix != nullptr) {
            row.per_thread = std::string(call.name) + call.per_thread_suffix;
            forms = 2;
        }
        const auto seen = evidence.find(call.name);
        if (call.delivery == calls::Delivery::refused) {
            row.state = fmt::format("refused ({})", call.why_refused);
            all.refused += forms;
        } else if (seen != evidence.end()) {
            row.state = fmt::format("works ({})", program_list(seen->second));
            all.work += forms;
        } else if (const auto* const failure = std::ranges::find(kNativeFailures, call.name, &NativeFailure::symbol);
                   failure != std::end(kNativeFailures)) {
            row.state = fmt::format("fails natively ({}, {})", failure->error, failure->program);
            all.fail_natively += forms;
        } else {
            row.state = "untested";
            all.untested += forms;
        }
        all.symbols += forms;
        all.rows.push_back(std::move(row));
    }
    std::sort(all.rows.begin(), all.rows.end(), [](const Row& a, const Row& b) { return a.symbol < b.symbol; });
    return all;
}

std::string totals(const Coverage& all) {
    return fmt::format("{} symbols: {} work, {} fail natively, {} untested, {} refused", all.symbols, all.work,
                       all.fail_natively, all.untested, all.refused);
}

}  // namespace

std::string coverage_text() {
    const Coverage all = coverage();
    std::string text = fmt::format("{:<44} {:<48} {:<18} {}\n", "CALL", "PER-THREAD FORM", "DELIVERED", "STATE");
    for (const Row& row : all.rows) {
        text += fmt::format("{:<44} {:<48} {:<18} {}\n", row.symbol, row.per_thread, row.delivery, row.state);
    }
    return text + totals(all) + "\n";
}

std::string coverage_markdown() {
    const Coverage all = coverage();
    std::string text =
        "# Driver calls\n\n"
        "<!-- Written by `gpupool coverage --markdown > docs/coverage.md`; a test compares the two. -->\n\n"
        "Every symbol that `libcuda.so.1` of driver 580 exports, and how gpupool treats it.\n\n"
        "- *works (programs)*: these programs made the call, the call succeeded, and the programs verified their\n"
        "  results. `scripts/collect-evidence` gathers this. A call and its per-thread form count together,\n"
        "  because they differ only in the default stream. Names ending in `@software` ran on the software GPU;\n"
        "  other names say where they ran.\n"
        "- *fails natively (error, program)*: on the tested GPUs the driver itself gives this error\n"
        "  (docs/driver-facts.md). The program verifies that gpupool gives it too.\n"
        "- *untested*: gpupool delivers the call as its class says, but no test program has made it successfully\n"
        "  yet.\n"
        "- *refused (reason)*: the call returns `CUDA_ERROR_NOT_SUPPORTED` and is logged once.\n\n"
        "How a call is delivered: the client answers a *local* call itself. A *deferred* call is sent and returns\n"
        "at once. A *sync* call waits for the reply. A *blocking* call may wait for the GPU too. A *callback*\n"
        "call runs a function of the application. A *composed* call consists of gpupool's own calls, each\n"
        "delivered in its own way: most additions of graph nodes do not wait, because the client knows the\n"
        "outcome, and some copies wait until the program's memory was read (docs/tracing.md). A *handled* call\n"
        "goes through the client first, which sends it only if it cannot answer itself; it answers most queries\n"
        "and stream-ordered allocations.\n\n";
    text += totals(all) + ".\n\n| call | per-thread form | delivered | state |\n|---|---|---|---|\n";
    for (const Row& row : all.rows) {
        const std::string per_thread = row.per_thread.empty() ? "" : "`" + row.per_thread + "`";
        text += fmt::format("| `{}` | {} | {} | {} |\n", row.symbol, per_thread, row.delivery, row.state);
    }
    return text;
}

void add_coverage(CLI::App& app, Command& chosen) {
    auto markdown = std::make_shared<bool>(false);
    auto* command = app.add_subcommand("coverage", "List the driver's calls and which of them work");
    command->add_flag("--markdown", *markdown, "Print the content of docs/coverage.md");
    command->callback([markdown, &chosen] {
        chosen = [markdown] {
            std::fputs((*markdown ? coverage_markdown() : coverage_text()).c_str(), stdout);
            return 0;
        };
    });
}

}  // namespace gpupool::cli
