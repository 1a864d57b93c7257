"""Answers of the API functions: one file a journey, with its frozen record and the table of its fields beside it.

Text, JSON, pages and figures are renderers of these tables (`field.to_json`, ``report``).
"""

from sartor.answers.advice import Advice, Lint
from sartor.answers.design import DesignAnswer
from sartor.answers.diagnosis import LogDiagnosis, RunComparison, TraceDiagnosis
from sartor.answers.estimate import CollectiveAnswer, GemmAnswer, ModelEstimate, Question
from sartor.answers.plan import LaunchAnswer, PlanAnswer
from sartor.answers.serving import ServingAnswer

__all__ = [
    "Advice",
    "CollectiveAnswer",
    "DesignAnswer",
    "GemmAnswer",
    "LaunchAnswer",
    "Lint",
    "LogDiagnosis",
    "ModelEstimate",
    "PlanAnswer",
    "Question",
    "RunComparison",
    "ServingAnswer",
    "TraceDiagnosis",
]
