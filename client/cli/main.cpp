// gpupool: the command that users type.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "client/cli/command.h"
#include "common/version.h"

namespace gpupool::cli {

namespace {

int run(int argc, char** argv) {
    // The arguments after `--` belong to the program.
    std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto separator = std::find(arguments.begin(), arguments.end(), "--");
    std::vector<std::string> program;
    if (separator != arguments.end()) {
        program.assign(separator + 1, arguments.end());
    }
    arguments.erase(separator, arguments.end());

    CLI::App app("gpupool runs programs on GPUs that another machine shares.", "gpupool");
    app.set_version_flag("--version", version());
    app.require_subcommand(1);
    Command chosen;
    add_run(app, chosen, program);
    add_trace(app, chosen, program);
    add_status(app, chosen);
    add_top(app, chosen);
    add_tenant(app, chosen);
    add_session(app, chosen);
    add_usage(app, chosen);
    add_coverage(app, chosen);
    const auto is_named = [&](const CLI::App* command) { return command->get_name() == arguments[0]; };
    if (!arguments.empty() && !arguments[0].starts_with('-') && app.get_subcommands(is_named).empty()) {
        complain("there is no command '" + arguments[0] +
                 "': run, trace, status, top, tenant, session, usage or coverage (gpupool --help says more)");
        return kExitUsage;
    }
    try {
        std::reverse(arguments.begin(), arguments.end());  // CLI11 expects them in reverse order
        app.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : kExitUsage;
    }
    return chosen();
}

}  // namespace
}  // namespace gpupool::cli

int main(int argc, char** argv) {
    return gpupool::cli::run(argc, argv);
}
