// The operations that a program consists of, and how each is cut into items for threads to share.

// What follows is said to it by the struct of kernels.h that its case names.
enum Kind : int64_t {
    RMS_NORM,
    RMS_NORM_FROM_ONE,
    LAYER_NORM,
    ROTATE,
    WRITE_SLOTS,
    ADD,
    ATTEND,
    FLOAT_LINEAR,
    QUANTISE,
    INT8_LINEAR,
    TAKE_ROWS
};

template <class Params> const Params& params_of(const void* task) { return *static_cast<const Params*>(task); }

template <class Workers>
void run_norm(void (*kernel)(DType, const Norm&, int64_t, int64_t), DType dtype, const void* task, Workers& workers) {
    const auto& p = params_of<Norm>(task);
    workers.share(p.rows, items_of(p.parts * p.width), [&](int64_t begin, int64_t end) { kernel(dtype, p, begin, end); });
}

// `workers.share(count, grain, body)` calls body(begin, end) for parts of 0..count, of at least `grain` items each.
template <class Workers> void run_operation(Kind kind, DType dtype, const void* task, Workers& workers) {
    switch (kind) {
        case RMS_NORM: return run_norm(kernels.rms_norm, dtype, task, workers);
        case RMS_NORM_FROM_ONE: return run_norm(kernels.rms_norm_from_one, dtype, task, workers);
        case LAYER_NORM: return run_norm(kernels.layer_norm, dtype, task, workers);
        case ROTATE: {
            const auto& p = params_of<Rotation>(task);
            return workers.share(p.tokens, items_of(p.heads * p.head_dim),
                                 [&](int64_t begin, int64_t end) { kernels.rotate(dtype, p, begin, end); });
        }
        case WRITE_SLOTS: {
            const auto& p = params_of<SlotWrite>(task);
            return workers.share(p.tokens, items_of(p.width),
                                 [&](int64_t begin, int64_t end) { write_slots(p, begin, end); });
        }
        case TAKE_ROWS: {
            const auto& p = params_of<RowChoice>(task);
            return workers.share(p.rows, items_of(p.width),
                                 [&](int64_t begin, int64_t end) { take_rows(p, begin, end); });
        }
        case ADD: {
            const auto& p = params_of<Sum>(task);
            return workers.share(p.rows, items_of(p.width),
                                 [&](int64_t begin, int64_t end) { kernels.add(dtype, p, begin, end); });
        }
        case ATTEND: {
            const auto& p = params_of<Attention>(task);
            return workers.share(p.num_tiles * p.kv_heads, 1,
                                 [&](int64_t begin, int64_t end) { kernels.attend(dtype, p, begin, end); });
        }
        case FLOAT_LINEAR: {
            FloatLinear p = params_of<FloatLinear>(task);
            p.blocks = blocks_of(p.rows, p.width * (dtype == FLOAT32 ? 4 : 2));
            return workers.share(p.blocks * panels_of(p.finish.columns), items_of(p.width * PANEL),
                                 [&](int64_t begin, int64_t end) { kernels.float_linear(dtype, p, begin, end); });
        }
        case QUANTISE: {
            const auto& p = params_of<Quantise>(task);
            return workers.share(p.rows, items_of(p.width), [&](int64_t begin, int64_t end) {
                kernels.quantise(dtype, p.x, p.stride, p.out, p.scales, p.width, p.padded, begin, end);
            });
        }
        case INT8_LINEAR: {
            Int8Linear p = params_of<Int8Linear>(task);
            p.blocks = blocks_of(p.rows, p.padded);
            return workers.share(p.blocks * panels_of(p.finish.columns), items_of(p.padded * PANEL),
                                 [&](int64_t begin, int64_t end) { kernels.int8_linear(dtype, p, begin, end); });
        }
    }
}
