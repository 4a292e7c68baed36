// One accessor per table, each defined in the file of its family. Internal to this folder.
#pragma once

namespace gpupool::client::export_tables {

const void* cudart_interface() noexcept;
const void* runtime_callback_hooks() noexcept;
const void* tools_tls() noexcept;
const void* context_local_storage() noexcept;
const void* context_checks() noexcept;
const void* integrity_check() noexcept;
const void* tools_identifiers() noexcept;
const void* tools_modules() noexcept;
const void* compute_cache() noexcept;

}  // namespace gpupool::client::export_tables
