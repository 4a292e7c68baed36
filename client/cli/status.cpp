// gpupool status: shows a server, its devices and its sessions.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "client/cli/administration.h"
#include "client/cli/command.h"
#include "client/cli/settings.h"
#include "client/cli/status_format.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::cli {

namespace {

constexpr std::chrono::milliseconds kTimeout{5000};

int show_status(const std::string& server, bool json) {
    if (const Status named = check_server_option(server); !named) {
        complain(named.error().message);
        return kExitUsage;
    }
    const auto settings = client_settings(server);
    if (!settings) {
        complain(settings.error().message);
        return kExitFailed;
    }
    const auto status = ask_status(settings->server, settings->token, kTimeout);
    if (!status) {
        complain(status.error().message);
        return kExitFailed;
    }
    const std::string text = json ? status_json(*status) : status_table(*status);
    std::fputs(text.c_str(), stdout);
    return 0;
}

}  // namespace

void add_status(CLI::App& app, Command& chosen) {
    struct Options {
        std::string server;
        bool json = false;
    };
    auto options = std::make_shared<Options>();
    auto* command = app.add_subcommand("status", "Show a server, its devices and its sessions");
    command->add_option("--server", options->server,
                        fmt::format("HOST:PORT or unix:/PATH; default: GPUPOOL_SERVER, the configuration file, {}",
                                    transport::kDefaultAddress));
    command->add_flag("--json", options->json, "Print JSON; field names are stable");
    command->callback(
        [options, &chosen] { chosen = [options] { return show_status(options->server, options->json); }; });
}

}  // namespace gpupool::cli
