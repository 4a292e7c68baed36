// gpupool status: shows a server, its devices and its sessions.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "client/cli/administration.h"
#include "client/cli/command.h"
#include "client/cli/settings.h"
#include "client/cli/status_format.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::cli {

namespace {

constexpr std::chrono::milliseconds kTimeout{5000};

struct StatusOptions {
    std::string server;
    std::string tenant;  // only its sessions; empty: all
    double watch_seconds = 0;
    bool json = false;
};

void keep_only(const std::string& tenant, ServerStatus& status) {
    std::erase_if(status.sessions, [&](const SessionStatus& session) { return session.tenant != tenant; });
    std::erase_if(status.queue, [&](const WaitingRequest& request) { return request.tenant != tenant; });
}

int show_status(const StatusOptions& options) {
    int exit_code = 0;
    const auto settings = settings_or_complain(options.server, exit_code);
    if (!settings) {
        return exit_code;
    }
    while (true) {
        auto status = ask_status(settings->server, settings->token, kTimeout);
        if (!status) {
            complain(status.error().message);
            return kExitFailed;
        }
        if (!options.tenant.empty()) {
            keep_only(options.tenant, *status);
        }
        const std::string text = options.json ? status_json(*status) : status_table(*status);
        const bool in_place = options.watch_seconds > 0 && !options.json && ::isatty(STDOUT_FILENO) != 0;
        std::fputs(((in_place ? "\033[H\033[2J" : "") + text).c_str(), stdout);
        std::fflush(stdout);
        if (options.watch_seconds <= 0) {
            return 0;
        }
        std::this_thread::sleep_for(std::chrono::duration<double>(options.watch_seconds));
    }
}

}  // namespace

void add_status(CLI::App& app, Command& chosen) {
    auto options = std::make_shared<StatusOptions>();
    auto* command = app.add_subcommand("status", "Show a server, its devices and its sessions");
    command->add_option("--server", options->server,
                        fmt::format("HOST:PORT or unix:/PATH; default: GPUPOOL_SERVER, the configuration file, {}",
                                    transport::kDefaultAddress));
    command->add_flag("--json", options->json, "Print JSON; field names are stable");
    command->add_option("--tenant", options->tenant, "Only the sessions of this tenant");
    command->add_option("--watch", options->watch_seconds, "Show it again every so many seconds (default 2)")
        ->expected(0, 1)
        ->default_str("2")
        ->check(CLI::Range(0.1, 3600.0));
    command->callback([options, &chosen] { chosen = [options] { return show_status(*options); }; });
}

}  // namespace gpupool::cli
