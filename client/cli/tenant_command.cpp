// gpupool tenant: the tenants of a server, their tokens and their limits.
#include <fmt/format.h>

#include <memory>

#include "client/cli/administration_requests.h"
#include "common/units.h"

namespace gpupool::cli {
namespace {

void add_list(CLI::App* parent, Command& chosen) {
    auto* command = parent->add_subcommand("list", "Show tenants and administrators, and their tokens' fingerprints");
    auto options = add_options(command, true);
    command->callback([=, &chosen] { chosen = [=] { return send_request(*options, messages::ListTenants{}); }; });
}

void add_add(CLI::App* parent, Command& chosen) {
    auto* command = parent->add_subcommand("add", "Add a tenant and print its first token, which is shown only once");
    auto options = add_options(command, false);
    auto request = std::make_shared<messages::AddTenant>();
    command->add_option("name", request->name, "Small letters, digits, '-', '_' and '.'")->required();
    command->add_flag("--administrator", request->administrator, "Not a tenant but an administrator");
    command->callback([=, &chosen] { chosen = [=] { return send_request(*options, *request); }; });
}

void add_rotate(CLI::App* parent, Command& chosen) {
    auto* command = parent->add_subcommand("rotate", "Print a new token of a tenant and end those that it has");
    auto options = add_options(command, false);
    auto request = std::make_shared<messages::RotateToken>();
    auto grace = std::make_shared<std::string>("0");
    command->add_option("name", request->name, "The tenant")->required();
    command->add_option("--grace", *grace, "How long the tokens so far stay valid, like 24h")->capture_default_str();
    command->callback([=, &chosen] {
        chosen = [=] {
            const auto time = parse_duration(*grace);
            if (!time || *time > messages::kMaxGrace) {
                complain(time ? "--grace: at most 366 days" : time.error().within("--grace").message);
                return kExitUsage;
            }
            request->grace = *time;
            return send_request(*options, *request);
        };
    });
}

void add_revoke(CLI::App* parent, Command& chosen) {
    auto* command = parent->add_subcommand("revoke", "End all tokens of a tenant, or one; sessions go on");
    auto options = add_options(command, false);
    auto request = std::make_shared<messages::RevokeTokens>();
    command->add_option("name", request->name, "The tenant")->required();
    command->add_option("--token", request->id, "Only this one, by its number in `gpupool tenant list`");
    command->callback([=, &chosen] { chosen = [=] { return send_request(*options, *request); }; });
}

}  // namespace

void add_tenant(CLI::App& app, Command& chosen) {
    auto* tenant = app.add_subcommand("tenant", "Add tenants, rotate their tokens, show and change their limits");
    tenant->require_subcommand(1);
    add_list(tenant, chosen);
    add_add(tenant, chosen);
    add_rotate(tenant, chosen);
    add_revoke(tenant, chosen);
    add_limit_commands(tenant, chosen, messages::LimitScope::Kind::tenant, "tenant");
}

}  // namespace gpupool::cli
