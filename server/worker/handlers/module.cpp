// Code. Libraries and modules are loaded from images on helper threads, since the driver may compile and waits for the
// GPU. Every function is loaded when it is resolved, so that no launch has to load it.

#include <algorithm>
#include <cstring>

#include "server/worker/dispatch/helpers.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/images/image_memory.h"
#include "server/worker/images/images.h"
#include "server/worker/images/jit_options.h"
#include "server/worker/images/loadable.h"
#include "server/worker/images/resolved_function.h"
#include "server/worker/scheduling/function_changes.h"

namespace gpupool::worker::handlers {
namespace {

template <class Handle>
constexpr bool is_module = std::is_same_v<Handle, CUmodule>;

template <class Handle>
struct LoadJob {
    using Call = std::function<CUresult(const driver::Api&, const void*, LoadJob&)>;

    ImageUse image;
    JitOptions jit;
    CUcontext context, client_context;
    Command command;
    std::uint64_t minted;
    std::size_t log_bytes;
    Call call;
    CUresult result = CUDA_SUCCESS;
    Handle handle = nullptr;
    ImageMemory memory = {};
    bool charged = false;
};

// On a helper: gets the image and reads it.
template <class Handle>
void read_image(LoadJob<Handle>& job) {
    if (job.image.obtain() == ImageUse::Outcome::ready) {
        job.memory = image_memory(*job.image.bytes());
    } else {
        job.result = job.image.outcome() == ImageUse::Outcome::wanted ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
    }
}

// Charges the variables of a module before the driver allocates them. Those of a library are allocated in each context
// that uses it, at the first use.
template <class Handle>
bool charge_data(SessionView& session, LoadJob<Handle>& job) {
    const ContextState* const context = session.objects.context(job.client_context);
    if (!is_module<Handle> || context == nullptr || job.memory.data_bytes == 0) {
        return true;
    }
    job.charged = session.memory.charge(session.api, context->device, job.memory.data_bytes);
    return job.charged;
}

template <class Handle>
void bind_loaded(SessionView& session, LoadJob<Handle>& job) {
    if (job.memory.may_print) {
        session.scheduler.expect_output();
    }
    session.handles.bind(codec::from_wire<Handle>(job.minted), job.handle);
    // A context that has ended meanwhile took its module along.
    const ContextState* const context = job.charged ? session.objects.context(job.client_context) : nullptr;
    session.memory.code.add(job.minted, std::move(job.memory), context);
    job.charged = job.charged && context == nullptr;
}

// The reply carries the log even after a failure, which is what the log is for.
template <class Handle>
void answer_load(CodeView& session, LoadJob<Handle>& job, CUdevice device) {
    session.images.record_outcome(job.image);
    const bool wanted = job.image.outcome() == ImageUse::Outcome::wanted;
    const std::uint64_t data_bytes = job.memory.data_bytes;
    if (wanted) {
        // The client will send the image and repeat the call.
    } else if (job.result == CUDA_SUCCESS) {
        bind_loaded(session, job);
    } else {
        session.handles.bind_failed(job.minted);
    }
    if (job.charged) {  // for nothing
        session.memory.account.release(device, data_bytes);
    }
    const std::string log = job.log_bytes == 0 ? std::string() : job.jit.log(job.log_bytes);
    session.answers.give(job.command, job.result, false, 8 + 8 + codec::aligned(log.size()), [&](std::byte* place) {
        codec::Writer out(place);
        out.value(wanted ? 1u : 0u);
        out.value(std::uint64_t{log.size()});
        out.bytes(log.data(), log.size());
    });
}

template <class Call, class Handle>
Outcome load(CodeView& session, Command& command, codec::Slots<Call>& slots, std::uint64_t minted,
             typename LoadJob<Handle>::Call call) {
    const std::size_t log_bytes = slots.template at<Call::log_bytes>().value;
    const ImageHash* hash = slots.template at<Call::hash>().value;
    if (hash == nullptr || log_bytes > kMaxLogBytes) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    const ContextState* context = session.context_of(command);
    auto job = std::make_shared<LoadJob<Handle>>(
        LoadJob<Handle>{session.images.use(*hash),
                        JitOptions(slots.template at<Call::options>().object,
                                   slots.template at<Call::option_values>().object, log_bytes),
                        context == nullptr ? nullptr : context->driver, context == nullptr ? nullptr : context->client,
                        command, minted, log_bytes, std::move(call)});
    if (!job->jit.valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUdevice device = context == nullptr ? 0 : context->device;
    session.waiting_calls.run([job] { read_image(*job); },
                              [&session, job, device] {
                                  if (job->image.outcome() != ImageUse::Outcome::ready) {
                                      answer_load(session, *job, device);
                                      return;
                                  }
                                  session.gate.when_open([&session, job, device] {
                                      if (!charge_data(session, *job)) {
                                          job->result = CUDA_ERROR_OUT_OF_MEMORY;
                                          answer_load(session, *job, device);
                                          return;
                                      }
                                      session.waiting_calls.run(
                                          [&api = session.api, job] {
                                              const Loadable loadable(job->image.bytes());
                                              job->result = in_context(api, job->context, [&] {
                                                  return job->call(api, loadable.image(), *job);
                                              });
                                          },
                                          [&session, job, device] { answer_load(session, *job, device); });
                                  });
                              });
    return Outcome::answered();
}

// Looks a function up in the caller's context, or in any context if the thread has none, and answers with its
// properties. `owner`: the client's handle that the function ends with.
template <class Call>
Outcome resolve(SessionView& session, Command& command, codec::Slots<Call>& slots, std::uint64_t owner,
                const std::string& name, std::function<void(const driver::Api&, ResolvedFunction&)> look_up) {
    const ContextState* state = session.context_of(command);
    if (state == nullptr && !session.objects.contexts.empty()) {
        state = session.objects.contexts.begin()->second.get();
    }
    if (const CUresult result = session.memory.charge_code(session.api, owner, state, name); result != CUDA_SUCCESS) {
        return result;
    }
    const CUcontext context = state == nullptr ? nullptr : state->driver;
    const std::size_t capacity = slots.template at<Call::capacity>().value;
    const std::uint64_t minted = slots.template at<Call::function>().minted;
    const auto job = std::make_shared<ResolvedFunction>(slots.template at<Call::attribute_count>().value);
    const driver::Api& api = session.api;
    session.waiting_calls.run(
        [&api, job, context, look_up = std::move(look_up)] {
            job->result = in_context(api, context, [&] {
                look_up(api, *job);
                return job->result;
            });
        },
        [&session, job, command, minted, capacity, owner] {
            if (job->result != CUDA_SUCCESS) {
                session.handles.bind_failed(minted);
                session.answers.give(command, job->result);
                return;
            }
            session.handles.bind(codec::from_wire<CUfunction>(minted), job->handle);
            session.handles.add_part(owner, minted);
            session.answers.give(command, CUDA_SUCCESS, false, job->layout_bytes(capacity) + job->attributes_bytes(),
                                 [&](std::byte* place) {
                                     codec::Writer out(place);
                                     job->write_layout(out, capacity);
                                     job->write_attributes(out);
                                 });
        });
    return Outcome::answered();
}

// All names, each terminated by a NUL.
std::string joined_names(const driver::Api& api, std::vector<CUkernel>& kernels) {
    std::string names;
    for (const CUkernel kernel : kernels) {
        const char* name = nullptr;
        if (driver::call(api.cuKernelGetName, &name, kernel) == CUDA_SUCCESS && name != nullptr) {
            names.append(name).push_back('\0');
        }
    }
    return names;
}

std::string joined_names(const driver::Api& api, std::vector<CUfunction>& functions) {
    std::string names;
    for (const CUfunction function : functions) {
        const char* name = nullptr;
        if (driver::call(api.cuFuncGetName, &name, function) == CUDA_SUCCESS && name != nullptr) {
            names.append(name).push_back('\0');
        }
    }
    return names;
}

template <class Call>
void give_names(codec::Slots<Call>& slots, const std::string& names) {
    auto& room = slots.template at<Call::names>().object;
    if (!room.empty()) {
        std::memcpy(room.data(), names.data(), std::min(room.size() - 1, names.size()));
    }
    slots.template at<Call::needed_bytes>().object = names.size();
}

}  // namespace

Outcome gpImageOffer(CodeView& session, Command&, codec::Slots<calls::gpImageOffer>& slots) {
    using Call = calls::gpImageOffer;
    const ImageHash* hash = slots.at<Call::hash>().value;
    if (hash == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return session.images.offer(*hash, slots.at<Call::bytes>().value);
}

Outcome gpImageData(CodeView& session, Command&, codec::Slots<calls::gpImageData>& slots) {
    using Call = calls::gpImageData;
    const ImageHash* hash = slots.at<Call::hash>().value;
    if (hash == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return session.images.add(*hash, slots.at<Call::offset>().value, slots.at<Call::data>().object,
                              slots.at<Call::unpacked_bytes>().value);
}

Outcome gpLibraryLoad(CodeView& session, Command& command, codec::Slots<calls::gpLibraryLoad>& slots) {
    using Call = calls::gpLibraryLoad;
    return load<Call, CUlibrary>(session, command, slots, slots.at<Call::library>().minted,
                                 [](const driver::Api& api, const void* image, LoadJob<CUlibrary>& job) {
                                     return driver::call(
                                         api.cuLibraryLoadData, &job.handle, image, job.jit.options.data(),
                                         job.jit.values.data(), static_cast<unsigned>(job.jit.options.size()),
                                         static_cast<CUlibraryOption*>(nullptr), static_cast<void**>(nullptr), 0u);
                                 });
}

Outcome gpModuleLoad(CodeView& session, Command& command, codec::Slots<calls::gpModuleLoad>& slots) {
    using Call = calls::gpModuleLoad;
    return load<Call, CUmodule>(session, command, slots, slots.at<Call::module>().minted,
                                [](const driver::Api& api, const void* image, LoadJob<CUmodule>& job) {
                                    return driver::call(api.cuModuleLoadDataEx, &job.handle, image,
                                                        static_cast<unsigned>(job.jit.options.size()),
                                                        job.jit.options.data(), job.jit.values.data());
                                });
}

Outcome gpFunctionResolve(CodeView& session, Command& command, codec::Slots<calls::gpFunctionResolve>& slots) {
    using Call = calls::gpFunctionResolve;
    CUmodule module = slots.at<Call::module>().value;
    if (const CUresult result = driver_handle(session, module); result != CUDA_SUCCESS) {
        return result;
    }
    if (slots.at<Call::name>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return resolve(
        session, command, slots, codec::to_wire(slots.at<Call::module>().value), slots.at<Call::name>().value,
        [module, name = std::string(slots.at<Call::name>().value)](const driver::Api& api, ResolvedFunction& found) {
            found.result = driver::call(api.cuModuleGetFunction, &found.handle, module, name.c_str());
            if (found.result == CUDA_SUCCESS) {
                found.load(api);
            }
        });
}

Outcome gpKernelResolve(CodeView& session, Command& command, codec::Slots<calls::gpKernelResolve>& slots) {
    using Call = calls::gpKernelResolve;
    CUlibrary library = slots.at<Call::library>().value;
    if (const CUresult result = driver_handle(session, library); result != CUDA_SUCCESS) {
        return result;
    }
    if (slots.at<Call::name>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ContextState* const state = session.context_of(command);
    struct Job {
        explicit Job(std::size_t attribute_count) : function(attribute_count) {}
        CUresult result = CUDA_SUCCESS;
        CUkernel kernel = nullptr;
        ResolvedFunction function;
    };
    const auto job = std::make_shared<Job>(slots.at<Call::attribute_count>().value);
    const std::size_t capacity = slots.at<Call::capacity>().value;
    // Looking a kernel up does not block, but loading one, which its layout requires, may wait for the GPU (measured).
    // So on_idle_gpu loads only if the GPU is idle, and gives it no work until that is done.
    const auto wish = slots.at<Call::load>().value;
    const bool alone = state != nullptr && wish == KernelLoad::on_idle_gpu &&
                       std::all_of(session.objects.contexts.begin(), session.objects.contexts.end(),
                                   [&](const auto& entry) { return session.scheduler.is_idle(*entry.second); });
    const bool load = alone || (state != nullptr && wish == KernelLoad::always);
    const std::uint64_t owner = codec::to_wire(slots.at<Call::library>().value);
    const std::string kernel_name = slots.at<Call::name>().value;
    if (load) {
        if (const CUresult result = session.memory.charge_code(session.api, owner, state, kernel_name);
            result != CUDA_SUCCESS) {
            return result;
        }
    }
    auto look_up = [&api = session.api, job, library, load, name = std::string(slots.at<Call::name>().value),
                    context = state == nullptr ? nullptr : state->driver] {
        job->result = in_context(api, context, [&] {
            const CUresult result = driver::call(api.cuLibraryGetKernel, &job->kernel, library, name.c_str());
            if (result == CUDA_SUCCESS && load) {
                job->function.load_of(api, job->kernel);
            }
            return result;
        });
    };
    auto answer = [&session, job, command, capacity, kernel = slots.at<Call::kernel>().minted,
                   function = slots.at<Call::function>().minted, owner, kernel_name] {
        if (job->result != CUDA_SUCCESS) {
            session.handles.bind_failed(kernel);
            session.answers.give(command, job->result);
            return;
        }
        session.handles.bind(codec::from_wire<CUkernel>(kernel), job->kernel);
        session.handles.add_part(owner, kernel);
        session.memory.code.add_kernel(kernel, owner, kernel_name);
        const bool loaded = job->function.result == CUDA_SUCCESS;
        if (loaded) {
            session.handles.bind(codec::from_wire<CUfunction>(function), job->function.handle);
            session.handles.add_part(kernel, function);
        }
        const std::size_t bytes = job->function.layout_bytes(capacity) + 8 + job->function.attributes_bytes();
        session.answers.give(command, CUDA_SUCCESS, false, bytes, [&](std::byte* place) {
            codec::Writer out(place);
            job->function.write_layout(out, capacity);
            out.value(loaded ? 1u : 0u);
            job->function.write_attributes(out);
        });
    };
    if (alone) {
        session.waiting_calls.run_alone(std::move(look_up), std::move(answer));
    } else {
        session.waiting_calls.run(std::move(look_up), std::move(answer));
    }
    return Outcome::answered();
}

Outcome gpKernelFunction(SessionView& session, Command& command, codec::Slots<calls::gpKernelFunction>& slots) {
    using Call = calls::gpKernelFunction;
    CUkernel kernel = slots.at<Call::kernel>().value;
    if (const CUresult result = driver_handle(session, kernel); result != CUDA_SUCCESS) {
        return result;
    }
    if (session.context_of(command) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return resolve(session, command, slots, codec::to_wire(slots.at<Call::kernel>().value), {},
                   [kernel](const driver::Api& api, ResolvedFunction& found) { found.load_of(api, kernel); });
}

namespace {

bool names_kernel(CUfunction function) {
    return codec::kind_of(codec::to_wire(function)) == codec::HandleKind::kernel;
}

}  // namespace

Outcome gpFunctionAttributes(CodeView& session, Command& command, codec::Slots<calls::gpFunctionAttributes>& slots) {
    using Call = calls::gpFunctionAttributes;
    CUfunction function = slots.at<Call::function>().value;
    const bool is_kernel = names_kernel(function);
    if (const CUresult result = driver_handle(session, function); result != CUDA_SUCCESS) {
        return result;
    }
    const ContextState* const state = session.context_of(command);
    const auto values = std::make_shared<std::vector<int>>(
        std::min<std::size_t>(slots.at<Call::capacity>().value, CU_FUNC_ATTRIBUTE_MAX));
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    session.helpers.run(
        [&api = session.api, function, is_kernel, device = slots.at<Call::device>().value, values, result,
         context = state == nullptr ? nullptr : state->driver] {
            *result =
                in_context(api, context, [&] { return read_attributes(api, function, is_kernel, device, *values); });
        },
        [&session, command, values, result] {
            if (*result != CUDA_SUCCESS) {
                session.answers.give(command, *result);
                return;
            }
            const std::size_t bytes = values->size() * sizeof(int);
            session.answers.give(command, CUDA_SUCCESS, false, 8 + codec::aligned(bytes) + 8, [&](std::byte* place) {
                codec::Writer out(place);
                out.value(std::uint64_t{values->size()});
                out.bytes(values->data(), bytes);
                out.value(std::uint64_t{values->size()});
            });
        });
    return Outcome::answered();
}

namespace {

// Would earlier launches that are issued after the change fail or behave differently?
bool affects_earlier_launches(CUfunction_attribute attribute, int former, int value) {
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return false;  // only hints
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: return value < former;
        default: return value != former;
    }
}

}  // namespace

// Held launches must see the function as it was when they arrived. So a change that would affect them is made when they
// have been issued. Later launches need not wait for it: the client refuses those that exceed a lowered limit, and for
// changes of other attributes it waits for the reply.
Outcome gpFunctionSetAttribute(CodeView& session, Command& command,
                               codec::Slots<calls::gpFunctionSetAttribute>& slots) {
    using Call = calls::gpFunctionSetAttribute;
    CUfunction function = slots.at<Call::function>().value;
    const bool is_kernel = names_kernel(function);
    CUresult result = driver_handle(session, function);
    if (result == CUDA_SUCCESS) {
        result = session.scheduler.enter(session.context_of(command));
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const auto attribute = static_cast<CUfunction_attribute>(slots.at<Call::attribute>().value);
    const int value = slots.at<Call::value>().value;
    const CUdevice device = slots.at<Call::device>().value;
    const FunctionChanges::Name name{function, attribute, device};
    if (command.ready) {
        if (!session.function_changes.stands(name)) {
            return CUDA_SUCCESS;
        }
    } else {
        int former = value;
        if (session.gate.queues_any()) {
            result = is_kernel ? driver::call(session.api.cuKernelGetAttribute, &former, attribute,
                                              reinterpret_cast<CUkernel>(function), device)
                               : driver::call(session.api.cuFuncGetAttribute, &former, attribute, function);
        }
        if (result == CUDA_SUCCESS && affects_earlier_launches(attribute, former, value)) {
            session.function_changes.put_off(name);
            return serve_after_all(session, command);
        }
        session.function_changes.overtake(name);
    }
    return is_kernel ? driver::call(session.api.cuKernelSetAttribute, attribute, value,
                                    reinterpret_cast<CUkernel>(function), device)
                     : driver::call(session.api.cuFuncSetAttribute, function, attribute, value);
}

Outcome gpLibraryModule(SessionView& session, Command& command, codec::Slots<calls::gpLibraryModule>& slots) {
    using Call = calls::gpLibraryModule;
    CUlibrary library = slots.at<Call::library>().value;
    if (const CUresult result = driver_handle(session, library); result != CUDA_SUCCESS) {
        return result;
    }
    const ContextState* const context = session.context_of(command);
    const std::uint64_t wire = codec::to_wire(slots.at<Call::library>().value);
    if (const CUresult result = session.memory.charge_code(session.api, wire, context, {}); result != CUDA_SUCCESS) {
        return result;
    }
    struct Job {
        CUmodule module = nullptr;
        CUresult result = CUDA_SUCCESS;
    };
    const auto job = std::make_shared<Job>();
    session.waiting_calls.run(
        [&api = session.api, job, library, context = context == nullptr ? nullptr : context->driver] {
            job->result =
                in_context(api, context, [&] { return driver::call(api.cuLibraryGetModule, &job->module, library); });
        },
        [&session, job, command, minted = slots.at<Call::module>().minted,
         owner = codec::to_wire(slots.at<Call::library>().value)] {
            if (job->result == CUDA_SUCCESS) {
                session.handles.bind(codec::from_wire<CUmodule>(minted), job->module);
                session.handles.add_part(owner, minted);
            } else {
                session.handles.bind_failed(minted);
            }
            session.answers.give(command, job->result);
        });
    return Outcome::answered();
}

namespace {

// Gets a texture or surface reference, which ends with its module.
template <class Call, int Reference, class Function>
Outcome get_reference(SessionView& session, Command& command, Function function, codec::Slots<Call>& given) {
    CUmodule module = given.template at<Call::hmod>().value;
    const std::uint64_t owner = codec::to_wire(module);
    if (const CUresult result = driver_handle(session, module); result != CUDA_SUCCESS) {
        return result;
    }
    const auto slots = std::make_shared<codec::Slots<Call>>();  // they outlive this handler
    slots->read(command.body);
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    const ContextState* const context = session.context_of(command);
    session.waiting_calls.run(
        [&api = session.api, function, slots, result, module,
         context = context == nullptr ? nullptr : context->driver] {
            *result = in_context(api, context, [&] {
                return driver::call(function, slots->template at<Reference>().value, module,
                                    slots->template at<Call::name>().value);
            });
        },
        [&session, command, slots, result, owner]() mutable {
            auto& reference = slots->template at<Reference>().object;
            if (*result == CUDA_SUCCESS && session.handles.known_handle(reference) == nullptr) {
                session.handles.add_part(owner, codec::to_wire(session.handles.client_handle(reference)));
            }
            finish<Call>(session, command, *slots, *result);
        });
    return Outcome::answered();
}

}  // namespace

Outcome cuModuleGetTexRef(SessionView& session, Command& command, codec::Slots<calls::cuModuleGetTexRef>& slots) {
    using Call = calls::cuModuleGetTexRef;
    return get_reference<Call, Call::pTexRef>(session, command, session.api.cuModuleGetTexRef, slots);
}

Outcome cuModuleGetSurfRef(SessionView& session, Command& command, codec::Slots<calls::cuModuleGetSurfRef>& slots) {
    using Call = calls::cuModuleGetSurfRef;
    return get_reference<Call, Call::pSurfRef>(session, command, session.api.cuModuleGetSurfRef, slots);
}

Outcome gpLibraryNames(SessionView& session, Command&, codec::Slots<calls::gpLibraryNames>& slots) {
    using Call = calls::gpLibraryNames;
    CUlibrary library = slots.at<Call::library>().value;
    unsigned count = 0;
    CUresult result = driver_handle(session, library);
    if (result == CUDA_SUCCESS) {
        result = driver::call(session.api.cuLibraryGetKernelCount, &count, library);
    }
    std::vector<CUkernel> kernels(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = driver::call(session.api.cuLibraryEnumerateKernels, kernels.data(), count, library);
    }
    if (result == CUDA_SUCCESS) {
        give_names(slots, joined_names(session.api, kernels));
    }
    return result;
}

Outcome gpModuleNames(SessionView& session, Command&, codec::Slots<calls::gpModuleNames>& slots) {
    using Call = calls::gpModuleNames;
    CUmodule module = slots.at<Call::module>().value;
    unsigned count = 0;
    CUresult result = driver_handle(session, module);
    if (result == CUDA_SUCCESS) {
        result = driver::call(session.api.cuModuleGetFunctionCount, &count, module);
    }
    std::vector<CUfunction> functions(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = driver::call(session.api.cuModuleEnumerateFunctions, functions.data(), count, module);
    }
    if (result == CUDA_SUCCESS) {
        give_names(slots, joined_names(session.api, functions));
    }
    return result;
}

}  // namespace gpupool::worker::handlers
