#include "client/cli/settings.h"

#include "client/cli/command.h"
#include "client/config.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::cli {

Status check_server_option(const std::string& server) {
    if (server.empty()) {
        return {};
    }
    const auto endpoint = transport::Endpoint::parse(server, transport::kDefaultPort);
    return endpoint ? Status() : Status(endpoint.error().within("--server"));
}

Result<Settings> client_settings(const std::string& server) {
    auto config = client::load_config();
    if (!config) {
        return config.error();
    }
    Settings settings{server.empty() ? config->server : server, config->token};
    if (settings.server.empty()) {
        settings.server = transport::kDefaultAddress;
    }
    return settings;
}

std::optional<Settings> settings_or_complain(const std::string& server, int& exit_code) {
    if (const Status named = check_server_option(server); !named) {
        complain(named.error().message);
        exit_code = kExitUsage;
        return std::nullopt;
    }
    auto settings = client_settings(server);
    if (!settings) {
        complain(settings.error().message);
        exit_code = kExitFailed;
        return std::nullopt;
    }
    return std::move(*settings);
}

}  // namespace gpupool::cli
