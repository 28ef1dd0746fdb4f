"""Rounding of the matrices of a checkpoint that is written, with and without calibration.

| file             | content                                                                     |
|------------------|-----------------------------------------------------------------------------|
| `schemes`        | the scheme of each matrix, by the precision that is asked for               |
| `scale_search`   | steps of groups, by the weighted error of several candidates                |
| `error_feedback` | rounds a matrix so that later inputs correct the errors of earlier ones     |
| `calibration`    | runs texts through a model, layer by layer, and rounds its matrices         |
"""
