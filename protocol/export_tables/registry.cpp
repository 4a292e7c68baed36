#include "protocol/export_tables/registry.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/log.h"
#include "protocol/export_tables/client_view.h"
#include "protocol/export_tables/table.h"
#include "protocol/export_tables/tables.h"

namespace gpupool::client::export_tables {
namespace {

std::atomic<ClientView*> installed{nullptr};

using Uuid = std::array<std::uint8_t, sizeof(CUuuid::bytes)>;

constexpr std::uint8_t hex_value(char c) {
    return static_cast<std::uint8_t>(c >= 'a' ? c - 'a' + 10 : c - '0');
}

consteval Uuid uuid(std::string_view text) {
    Uuid result{};
    std::size_t digits = 0;
    for (char c : text) {
        if (c == '-') {
            continue;
        }
        result[digits / 2] = static_cast<std::uint8_t>(result[digits / 2] << 4 | hex_value(c));
        ++digits;
    }
    if (digits != 2 * result.size()) {
        throw "a UUID has 32 digits";
    }
    return result;
}

struct Known {
    Uuid id;
    const void* (*table)() noexcept;
};

constexpr std::array kKnown = {
    Known{uuid("6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"), cudart_interface},
    Known{uuid("a094798c-2e74-2e74-93f2-0800200c0a66"), runtime_callback_hooks},
    Known{uuid("42d85a81-23f6-cb47-8298-f6e78a3aecdc"), tools_tls},
    Known{uuid("c693336e-1121-df11-a8c3-68f355d89593"), context_local_storage},
    Known{uuid("263e8860-7cd2-6143-92f6-bbd5006dfa7e"), context_checks},
    Known{uuid("d4082055-bde6-704b-8d34-ba123c66e1f2"), integrity_check},
    Known{uuid("21318c60-9714-3248-8ca6-41ff7324c8f2"), tools_identifiers},
    Known{uuid("6e163fbe-b958-444d-835c-e182aff1991e"), tools_modules},
    Known{uuid("1734dc26-800d-4745-8726-c0f1e7dd8bca"), compute_cache},
};

}  // namespace

void install(ClientView* view) noexcept {
    installed.store(view, std::memory_order_release);
}

ClientView* view() noexcept {
    return installed.load(std::memory_order_acquire);
}

void report_unlisted(const char* table, std::size_t index) noexcept {
    log::warn("cuGetExportTable: slot {} of the private table {} was called, which gpupool does not implement", index,
              table);
}

const void* find(const CUuuid& id) noexcept {
    for (const Known& entry : kKnown) {
        if (std::memcmp(entry.id.data(), id.bytes, entry.id.size()) == 0) {
            return entry.table();
        }
    }
    return nullptr;
}

}  // namespace gpupool::client::export_tables
