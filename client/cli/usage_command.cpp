// gpupool usage: what each tenant has used, by day.
#include <fmt/format.h>

#include <memory>

#include "client/cli/administration_format.h"
#include "client/cli/administration_requests.h"

namespace gpupool::cli {
namespace {

struct UsageOptions {
    std::string tenant, since, until;
};

int show_usage(const AdministrationOptions& options, const UsageOptions& wanted) {
    messages::ShowUsage request;
    request.tenant = wanted.tenant;
    for (const auto& [text, day, name] : {std::tuple(&wanted.since, &request.first_day, "--since"),
                                          std::tuple(&wanted.until, &request.last_day, "--until")}) {
        if (text->empty()) {
            continue;
        }
        const auto parsed = parse_day(*text);
        if (!parsed) {
            complain(parsed.error().within(name).message);
            return kExitUsage;
        }
        *day = *parsed;
    }
    return send_request(options, request);
}

}  // namespace

void add_usage(CLI::App& app, Command& chosen) {
    auto* command = app.add_subcommand("usage", "Show what each tenant has used, by day (UTC)");
    auto options = add_options(command, true);
    auto wanted = std::make_shared<UsageOptions>();
    command->add_option("--tenant", wanted->tenant, "Only this one");
    command->add_option("--since", wanted->since, "The first day, like 2026-11-01");
    command->add_option("--until", wanted->until, "The last day");
    command->callback([=, &chosen] { chosen = [=] { return show_usage(*options, *wanted); }; });
}

}  // namespace gpupool::cli
